"""Stages of a study side by side, drawn by matplotlib without a display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from pipeline.report.canvas import COLOURS, canvas, plain

LABEL: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 7}


@dataclass(frozen=True)
class Side:
    """One stage: its epochs with the accuracy on the validation images, test accuracy, training rate (images/s)."""

    name: str
    epochs: Sequence[tuple[int, float]]
    accuracy: float
    rate: tuple[float, float, float]  # median, lowest, highest


def draw(path: Path, sides: Sequence[Side], title: str) -> None:
    """Validation accuracy by epoch, test accuracy, and the rate: the median of the epochs, their range as a line."""
    figure = canvas(11, 1.4 + 0.5 * max(len(sides), 4))
    curves, test, rates = figure.subplots(1, 3)
    names = [side.name for side in sides]
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(names))]
    for side, colour in zip(sides, colours, strict=True):
        epochs, accuracies = zip(*side.epochs, strict=True)
        curves.plot(epochs, accuracies, "o-", ms=3, color=colour, label=side.name)
        test.plot(side.accuracy, side.name, "o", color=colour)
        test.annotate(f"{side.accuracy:.4f}", (side.accuracy, side.name), (0, 7), **LABEL)
        rates.plot(side.rate[1:], (side.name, side.name), color=colour, alpha=0.5)
        rates.plot(side.rate[0], side.name, "o", color=colour)
        rates.annotate(f"{side.rate[0]:,.0f}", (side.rate[0], side.name), (0, 7), **LABEL)
    curves.set_xlabel("epoch")
    curves.set_ylabel("validation accuracy")
    curves.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    test.set_xlabel("test accuracy")
    rates.set_xlabel("training, 1000 images/s")
    rates.xaxis.set_major_formatter(lambda rate, _: f"{rate / 1000:g}")
    rates.set_yticklabels([])
    for axes in (test, rates):
        axes.margins(x=0.15, y=0.25)
        axes.invert_yaxis()
    rates.set_xlim(left=0)
    for axes in (curves, test, rates):
        plain(axes)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path)
