"""What all figures share: matplotlib without a display, plain axes, the colours."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2b6cb0", "#c05621", "#a0aec0"
COLOURS = (BLUE, ORANGE, "#2f855a", "#6b46c1", "#b83280", "#b7791f", "#718096")


def canvas(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Axes) -> None:
    """A faint grid, and no frame where nothing is read off."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
