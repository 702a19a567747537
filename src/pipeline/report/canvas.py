"""What all figures share: matplotlib without a display, plain axes, the colours."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

BLUE, ORANGE, GREY = "#2b6cb0", "#c05621", "#a0aec0"
COLOURS = (BLUE, ORANGE, "#2f855a", "#6b46c1", "#b83280", "#b7791f", "#718096")


def canvas(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def log_labels(axis: Axis) -> None:
    """A number at 1, 2 and 5 times each power of ten: of less than a decade there might be one label, or none."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def plain(axes: Axes) -> None:
    """A faint grid, and no frame where nothing is read off."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
