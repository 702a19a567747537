"""Figures of a training, drawn by matplotlib without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from pipeline.report.canvas import BLUE, GREY, ORANGE, canvas, plain, save
from pipeline.report.table import figure as number_of
from pipeline.runs.fit import Epoch

MOST_CLASSES = 30  # whose counts and names a confusion matrix has room for
FLAT = 6  # letters of a class's name that need not be turned below a column
TITLE_WIDTH = 8.0  # inches, for a sheet of few images: the title has the id of a run
MARKED = 100  # epochs, up to which each has a mark: of thousands they would be one broad band
OUTPUTS = 8  # of a regression, a panel each
THICKNESS = 0.27  # of a bar, beside an image that is 1 high
NAME_LENGTH = 32  # characters of an image's name that fit above it and its bars


def training_curves(path: Path, epochs: Sequence[Epoch], tested: Mapping[str, float], title: str, of: str) -> None:
    """Loss and score of training and validation by epoch or step, with the test set's as a line.

    `tested`: the test set's loss and, where the task has one, its score by name. `of`: which weights were tested.
    """
    figure = canvas(4.5 * len(tested), 3.6)
    along, numbers = by(epochs)
    mark: dict[str, Any] = {"marker": "o", "ms": 3} if len(epochs) <= MARKED else {}
    for number, (name, at_test) in enumerate(tested.items(), start=1):
        field = "loss" if name == "loss" else "score"
        axes = figure.add_subplot(1, len(tested), number)
        trained = [getattr(epoch, f"train_{field}") for epoch in epochs]
        axes.plot(numbers, trained, color=BLUE, label="training", **mark)
        held_out = [getattr(epoch, f"validation_{field}") for epoch in epochs]
        if held_out[0] is not None:
            # printed in grey, the two colours are alike
            hollow: dict[str, Any] = {"marker": "s", "ms": 4, "mfc": "white"} if mark else {}
            axes.plot(numbers, held_out, color=ORANGE, label="validation", **hollow)
        axes.axhline(at_test, color=GREY, ls="--", label=f"test, {of}: {number_of(at_test)}")
        axes.set_xlabel(along)
        axes.set_ylabel("mean loss" if name == "loss" else name.replace("_", " "))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        plain(axes)
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 3}  # where no line is
        axes.legend(**below, frameon=False, fontsize=8, handlelength=1.5, columnspacing=1.0, handletextpad=0.5)
    figure.suptitle(title, fontsize=10)
    save(figure, path)


def by(epochs: Sequence[Epoch]) -> tuple[str, list[int]]:
    """What curves are drawn along: the number of each epoch, or of its last step where validations are by steps."""
    if epochs[0].passes is None:
        return "epoch", [epoch.number for epoch in epochs]
    return "step", list(accumulate(epoch.steps for epoch in epochs))


def confusion_matrix(path: Path, counts: np.ndarray, classes: Sequence[str], title: str) -> None:
    """Rows: true class; columns: predicted class; colour: share of the row. Of many classes without the counts."""
    every = -(-len(classes) // MOST_CLASSES)  # classes, of which one is named
    side = 2.2 + 0.5 * len(classes) / every
    figure = canvas(side + 0.6, side)
    axes = figure.add_subplot()
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(*counts.shape) if every == 1 else ():
        if counts[row, column]:
            colour = "white" if share[row, column] > 0.5 else "black"
            shown = axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=7, color=colour)
            shown.set_in_layout(False)  # it lies inside its square: no room has to be found for it
    ticks, names = range(0, len(classes), every), classes[::every]
    if max(map(len, names)) > FLAT:
        axes.set_xticks(ticks, names, rotation=45, ha="right", fontsize=8, parse_math=False)
    else:
        axes.set_xticks(ticks, names, fontsize=8, parse_math=False)
    axes.set_yticks(ticks, names, fontsize=8, parse_math=False)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    save(figure, path)


def against_actual(path: Path, actual: np.ndarray, predicted: np.ndarray, title: str) -> None:
    """A panel for each of the first OUTPUTS outputs: predicted against actual numbers (N, outputs)."""
    shown = min(actual.shape[1], OUTPUTS)
    columns = min(shown, 4)
    rows = -(-shown // columns)
    figure = canvas(3.6 * columns + 0.4, 3.6 * rows + 0.4)
    for number in range(shown):
        axes = figure.add_subplot(rows, columns, number + 1)
        both = actual[:, number], predicted[:, number]
        ends = [min(map(np.min, both)), max(map(np.max, both))]
        axes.plot(ends, ends, color=GREY, lw=1.5, zorder=0)
        axes.plot(*both, "o", ms=3, alpha=0.5, color=BLUE, mew=0, rasterized=True)
        axes.set_xlabel("actual" if actual.shape[1] == 1 else f"actual, output {number}")
        axes.set_ylabel("predicted")
        plain(axes)
    left_out = f" (the first {shown} of {actual.shape[1]} outputs)" if shown < actual.shape[1] else ""
    figure.suptitle(f"{title}{left_out}", fontsize=10)
    save(figure, path)


def image_sheet(
    path: Path,
    images: np.ndarray,
    probabilities: np.ndarray,
    classes: Sequence[str],
    labels: np.ndarray | None,
    title: str,
    names: Sequence[str] | None = None,
) -> None:
    """Each image beside its most probable classes. `images` (N, H, W, C); `labels` (N,) where known.

    Images that are not in [0, 1] are drawn from black, the lowest number of all, to white, as the title says. `names`
    are written above the images.
    """
    low, high = float(images.min()), float(images.max())
    if low < 0 or high > 1:
        images = (images.astype(np.float64) - low) / ((high - low) or 1.0)
        title = f"{title}; black is {low:.3g} and white {high:.3g}"
    columns = min(4, len(images))
    rows = -(-len(images) // columns)
    # One pair of axes for the whole sheet, an image being 1 high: a pair for each image takes five times as long.
    across, down = 2.3, 1.1 if names is None else 1.25
    figure = Figure(figsize=(max(1.35 * across * columns, TITLE_WIDTH), 1.35 * down * rows + 0.4), dpi=120)
    figure.suptitle(title, fontsize=10)
    axes = figure.add_axes((0, 0, 1, 1 - 0.35 / figure.get_figheight()))
    axes.axis("off")
    axes.autoscale(False)  # its limits are known: to find them anew for each of a hundred artists takes a third of all
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        left, top = across * column, down * row
        _picture(axes, image, left, top)
        if names is not None:
            axes.text(left, top - 0.05, _cut(names[number]), fontsize=7, va="bottom", parse_math=False)
        _bars(axes, probabilities[number], classes, labels if labels is None else int(labels[number]), left + 1.08, top)
    axes.set_xlim(-0.05, across * columns)
    axes.set_ylim(down * rows - 0.05, -0.05 if names is None else -0.2)
    axes.set_aspect("equal")
    save(figure, path)


def _picture(axes: Axes, image: np.ndarray, left: float, top: float) -> None:
    """An image (H, W, C), its longer side 1, in a frame."""
    height, width = np.array(image.shape[:2]) / max(image.shape[:2])
    box = (left, left + width, top + height, top)
    shown = image[..., 0] if image.shape[-1] == 1 else image
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1, extent=box, interpolation="nearest")
    axes.add_artist(Rectangle((left, top), width, height, fill=False, linewidth=0.8))


def _cut(name: str) -> str:
    """A file name that leaves its neighbour room, with its end, which distinguishes numbered files."""
    return name if len(name) <= NAME_LENGTH else f"{name[:8]}…{name[9 - NAME_LENGTH :]}"


def _bars(
    axes: Axes, probabilities: np.ndarray, classes: Sequence[str], label: int | None, left: float, top: float
) -> None:
    """The three most probable classes of one image; the true class is blue and outlined, a wrong first guess orange."""
    best = np.argsort(-probabilities)[:3]
    colours = [BLUE if index == label else GREY for index in best]
    if colours[0] == GREY:
        colours[0] = BLUE if label is None else ORANGE
    heights = top + (np.arange(len(best)) + 0.5) / 3
    for height, index, colour in zip(heights, best, colours, strict=True):
        likely = probabilities[index]
        edge = "black" if index == label else "none"  # printed in grey, the three colours are alike
        corner = (left, height - THICKNESS / 2)
        bar = Rectangle(corner, likely * 1.1, THICKNESS, facecolor=(colour, 0.5), edgecolor=edge)
        axes.add_artist(bar)  # the name is written over it
        text = f"{classes[index]}  {likely:.2f}"
        axes.text(left + 0.04, height, text, va="center", fontsize=7, parse_math=False)
