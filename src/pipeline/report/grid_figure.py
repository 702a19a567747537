"""The figures of a grid and of a search."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from pipeline.report.canvas import COLOURS, canvas, colour_of, mark_of, plain, save


def dots(
    path: Path,
    labels: Sequence[str],
    series: Mapping[str, Sequence[Sequence[float]]],
    *,
    axis: str,
    rows: str,
    legend: str,
    title: str,
    remarks: Sequence[str] = (),
) -> None:
    """Rows `labels`, top to bottom; `series`: name -> each row's values (repetitions faint, their median full).

    `rows`: what the labels are values of, written above them. `remarks`: of each row, behind it.
    """
    figure = canvas(7, 1.5 + 0.32 * len(labels))
    axes = figure.add_subplot()
    for number, (name, each) in enumerate(series.items()):
        colour, mark = colour_of(number), mark_of(number)
        for height, values in enumerate(each):
            if len(values) > 1:
                axes.plot(values, [height] * len(values), mark, ms=4, color=colour, alpha=0.3, ls="")
            if values:
                axes.plot(statistics.median(values), height, mark, ms=6, color=colour, ls="")
        axes.plot([], [], mark, color=colour, ls="", label=name)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8}
    # From the figure's edge: beside the labels long names would take the axes' room.
    axes.annotate(rows, (0.01, 1), (0, 4), xycoords=("figure fraction", "axes fraction"), **text)
    for height, remark in enumerate(remarks):
        axes.annotate(remark, (1, height), (4, 0), xycoords=("axes fraction", "data"), va="center", **text)
    repeated = any(len(values) > 1 for each in series.values() for values in each)
    axes.set_xlabel(f"{axis} (pale: each run; full: their median)" if repeated else axis)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if legend:
        figure.legend(title=legend, frameon=False, fontsize=8, title_fontsize=8, loc="outside right center")
    axes.set_title(title, fontsize=10, pad=18)
    save(figure, path)


def history(
    path: Path,
    points: Sequence[tuple[int, float]],
    axis: str,
    better: Callable[[Sequence[float]], float],
    title: str,
) -> None:
    """Trials (number, value) in the order in which they were asked for, with the best so far as a line."""
    figure = canvas(7, 3.6)
    axes = figure.add_subplot()
    numbers, values = [number for number, _ in points], [value for _, value in points]
    best = [better(values[: index + 1]) for index in range(len(values))]
    axes.plot(numbers, values, "o", ms=4, color=COLOURS[0], label="a trial")
    axes.step(numbers, best, where="post", color=COLOURS[1], label="the best so far")
    axes.set_xlabel("trial")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylabel(axis)
    axes.set_title(title, fontsize=10)
    plain(axes)
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)
