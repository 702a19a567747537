"""The figure of stage=long_range: what models recall over a distance, and what a length costs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import ScalarFormatter

from pipeline.report.canvas import GREY, canvas, colour_of, log_labels, mark_of, nested, plain, save, striped

Spread = tuple[float, float, float]  # the middle, the least and the most


def figure(
    path: Path,
    recalled: Mapping[str, Mapping[int, Sequence[float]]],
    times: Mapping[str, Mapping[int, Spread]],
    peaks: Mapping[str, Mapping[int, float]],
    *,
    whose: str,
    guess: float | None,
    title: str,
) -> None:
    """By model: accuracies by distance, seconds of a sequence and MiB by length. Bars: from the least to the most.

    `whose`: memory, the device's or the process's.
    """
    drawn = canvas(12, 3.6)
    accuracy, time, memory = drawn.subplots(1, 3)
    for number, name in enumerate(recalled):
        style: dict[str, Any] = {
            "color": colour_of(number),
            "marker": mark_of(number),
            "fillstyle": "none",
            "ms": nested(number, len(recalled), 4, 3),
            "ls": striped(number, len(recalled)),
            "label": name,
        }
        bars = style | {"elinewidth": nested(number, len(recalled), 1, 1)}
        _with_bars(accuracy, {at: spread(values) for at, values in recalled[name].items()}, bars)
        _with_bars(time, {at: (1e3 * a, 1e3 * b, 1e3 * c) for at, (a, b, c) in times[name].items()}, bars)
        memory.plot([*peaks[name]], [*peaks[name].values()], **style)
    if guess is not None:
        accuracy.axhline(guess, color=GREY, ls="--", label="a guess")
    accuracy.set_ylim(0, 1.03)
    memory.set_ylim(0, 1.05 * memory.get_ylim()[1])
    _label(accuracy, recalled, "distance, positions", "test accuracy")
    _label(time, times, "length, tokens", "a sequence in training, ms")
    _label(memory, peaks, "length, tokens", f"peak memory of the {whose}, MiB")
    if any(times.values()):
        time.set_yscale("log")
        log_labels(time.yaxis)
    handles = accuracy.get_legend_handles_labels()
    drawn.legend(*handles, frameon=False, fontsize=8, handlelength=4, loc="outside right center")
    drawn.suptitle(title, fontsize=10)
    save(drawn, path)


def _label(axes: Axes, found: Mapping[str, Mapping[int, Any]], across: str, up: str) -> None:
    """The axes of a panel, whose horizontal one has a logarithmic scale."""
    if not any(found.values()):  # a logarithmic scale has no place for nothing
        axes.text(0.5, 0.5, "no result", transform=axes.transAxes, ha="center")
        axes.set_xticks([])
        axes.set_yticks([])
    else:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    plain(axes)


def spread(values: Sequence[float]) -> Spread:
    """Median, least and most."""
    return statistics.median(values), min(values), max(values)


def _with_bars(axes: Axes, by: Mapping[int, Spread], style: dict[str, Any]) -> None:
    at = sorted(by)
    middle = [by[one][0] for one in at]
    below, above = ([abs(by[one][0] - by[one][end]) for one in at] for end in (1, 2))
    axes.errorbar(at, middle, [below, above], capsize=2, **style)
