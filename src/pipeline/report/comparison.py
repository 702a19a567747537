"""Stages of a study side by side, drawn by matplotlib without a display."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pipeline.report.canvas import GREY, canvas, colour_of, mark_of, plain, save
from pipeline.report.intervals import half_width

LABEL: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
LEAST_SPAN = 0.01  # of the axis of test accuracies: what is closer together than that is not drawn far apart
NOTE = (
    "Left: mean over seeds, range shaded. Middle: one filled mark per seed; open mark and line: mean and 95 % interval "
    "over the seeds, on this machine. Other machines and a longer training are not shown."
)


@dataclass(frozen=True)
class Side:
    """One stage, trained with one seed or several.

    `epochs`: number, and accuracy on the validation images: mean, lowest, highest. `accuracies`: each seed's on the
    test set. `rate`: of training, in `unit`: median, lowest, highest.
    """

    name: str
    epochs: Sequence[tuple[float, float, float, float]]
    accuracies: Sequence[float]
    rate: tuple[float, float, float]
    unit: str = "images/s"


def draw(path: Path, sides: Sequence[Side], title: str) -> None:
    """Validation accuracy by epoch, test accuracy by seed with its interval, and the rate with its range.

    The rates of all have one unit.
    """
    figure = canvas(11, 1.7 + 0.55 * max(len(sides), 4))
    curves, test, rates = figure.subplots(1, 3)
    for index, side in enumerate(sides):
        colour, mark = colour_of(index), mark_of(index)
        numbers, means, lowest, highest = zip(*side.epochs, strict=True)
        curves.plot(numbers, means, f"{mark}-", ms=4, color=colour, label=side.name)
        curves.fill_between(numbers, lowest, highest, color=colour, alpha=0.15, linewidth=0)
        _accuracy(test, side, colour, mark)
        rates.plot(side.rate[1:], (side.name, side.name), color=colour, alpha=0.5)
        rates.plot(side.rate[0], side.name, mark, color=colour)
        rates.annotate(f"{side.rate[0]:,.0f}", (side.rate[0], side.name), (0, 7), **LABEL)
    curves.set_xlabel("epoch")
    curves.set_ylabel("validation accuracy")
    curves.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    test.set_xlabel("test accuracy")
    test.set_xlim(span(sides))
    rates.set_xlabel(f"training, 1000 {sides[0].unit}")
    rates.xaxis.set_major_formatter(lambda rate, _: f"{rate / 1000:g}")
    rates.set_yticklabels([])
    for axes in (test, rates):
        axes.margins(y=0.25)
        axes.invert_yaxis()
    rates.margins(x=0.15)
    rates.set_xlim(left=0)
    for axes in (curves, test, rates):
        plain(axes)
    figure.suptitle(title, fontsize=10)
    figure.supxlabel(NOTE, fontsize=7, color=GREY)
    save(figure, path)


def span(sides: Sequence[Side]) -> tuple[float, float]:
    """From the lowest to the highest accuracy of any seed or end of an interval, with a margin; LEAST_SPAN at least."""
    ends = [end for side in sides for end in (*side.accuracies, *interval(side))]
    middle, half = (max(ends) + min(ends)) / 2, max(max(ends) - min(ends), LEAST_SPAN) / 2
    return middle - 1.15 * half, middle + 1.15 * half


def interval(side: Side) -> tuple[float, ...]:
    """Low and high end of the interval of the mean; nothing where the seeds are too few for one."""
    half, mean = half_width(side.accuracies), statistics.fmean(side.accuracies)
    return () if half is None else (mean - half, mean + half)


def _accuracy(axes: Axes, side: Side, colour: str, mark: str) -> None:
    ends, mean = interval(side), statistics.fmean(side.accuracies)
    axes.plot(side.accuracies, [side.name] * len(side.accuracies), mark, ms=3.5, color=colour, alpha=0.6)
    if ends:
        axes.plot(ends, (side.name, side.name), color=colour, alpha=0.5)
        axes.plot(mean, side.name, mark, ms=7, color=colour, fillstyle="none")
    axes.annotate(f"{mean:.4f}", (mean, side.name), (0, 7), **LABEL)
