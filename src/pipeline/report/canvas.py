"""What all figures share: matplotlib without a display, plain axes, the colours."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

BLUE, ORANGE, GREY = "#2b6cb0", "#c05621", "#6b7280"
# Chosen by computing, so that no two are alike for a colour-blind reader either: tests/test_figures.py has the measure.
COLOURS = (BLUE, ORANGE, "#38a169", "#332288", "#882255", "#000000", "#5f370e")
MARKS = "osD^vPX*<>"
APART = 0.08  # of an axis, that a label of a size takes
STRIPE = 4  # times the width of a line


rcParams["text.usetex"] = False  # whatever the user's matplotlibrc says: TeX refuses the underscores of our labels


def canvas(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG: laid out, then drawn once. `savefig` draws one that has a layout twice, to the same
    picture."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box stands in its stead
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
            figure.set_layout_engine("none")
        canvas.print_png(path)


def without_glyph(text: str) -> set[str]:
    """The characters of a text that no font of the figures has: a box stands in the stead of each."""
    fonts = [get_font(findfont(FontProperties(family=[name]))) for name in FontProperties().get_family()]
    return {letter for letter in text if not any(font.get_char_index(ord(letter)) for font in fonts)}


class _Labels(LogLocator):
    """At 1, 2 and 5 times each power of ten, or of `wide` labels at the powers alone; where fewer than two of these are
    seen, at equal distances."""

    def __init__(self, *, wide: bool) -> None:
        super().__init__(subs=(1, 2, 5))
        self.wide = wide

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        found = super().tick_values(vmin, vmax)
        powers = [one for one in found if math.log10(one).is_integer()] if self.wide else []
        for ticks in (powers, found):
            if sum(vmin <= one <= vmax for one in ticks) > 1:
                return ticks
        return [one for one in MaxNLocator(5, steps=(1, 2, 5, 10)).tick_values(vmin, vmax) if one > 0]


def log_labels(axis: Axis) -> None:
    """Plain numbers, two at least: of less than a decade there might be one label, or none."""
    axis.set_major_locator(_Labels(wide=isinstance(axis, XAxis)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


def apart(sizes: Sequence[int]) -> list[int]:
    """Those of rising sizes whose labels have room beside each other on a logarithmic axis, the smallest first."""
    shown = [sizes[0]]
    for size in sizes[1:]:
        if math.log(size / shown[-1]) > APART * math.log(sizes[-1] / sizes[0]):
            shown.append(size)
    return shown


def colour_of(number: int) -> str:
    """The colour of a series by its number."""
    return COLOURS[number % len(COLOURS)]


def mark_of(number: int) -> str:
    """The mark of a series by its number. Of 70 series no two have both colour and mark in common."""
    return MARKS[number % len(MARKS)]


def nested(index: int, count: int, least: float, step: float) -> float:
    """The size of one of `count` series, the first the largest: where they coincide, each is seen around the next."""
    return least + step * (count - 1 - index)


def striped(index: int, count: int) -> tuple[float, tuple[float, ...]]:
    """The dashes of one of `count` lines that are drawn one above the other: where they coincide, each is seen in turn.

    The first has no gaps, and the last one part of colour in `count`.
    """
    return (0, (STRIPE * (count - index), STRIPE * index) if index else ())


def plain(axes: Axes) -> None:
    """A faint grid, and no frame where nothing is read off."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
