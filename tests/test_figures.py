"""Figures of a training: classes of any number and name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from PIL import Image

from pipeline.losses.cross_entropy import CrossEntropy
from pipeline.report import figures
from pipeline.report.canvas import canvas, save
from pipeline.report.figures import confusion_matrix, image_sheet
from pipeline.tasks.classification import Classification


def labelled() -> Figure:
    """A figure with all that its layout makes room for."""
    figure = canvas(6, 3)
    for number in (1, 2):
        axes = figure.add_subplot(1, 2, number)
        axes.plot([1e-6, 2e-6, 3e-6], label="a long label")
        axes.set_ylabel("what is measured")
        axes.legend()
    figure.colorbar(axes.imshow(np.eye(3)), ax=axes, label="colour")
    figure.suptitle("title")
    return figure


def test_a_figure_is_drawn_once_and_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a few seconds spent a third of them in drawing its figures twice."""
    labelled().savefig(tmp_path / "matplotlibs.png")
    drawn: list[Axes] = []
    draw = Axes.draw

    def counted(axes: Axes, renderer: RendererBase) -> None:
        drawn.append(axes)
        draw(axes, renderer)

    monkeypatch.setattr(Axes, "draw", counted)
    save(labelled(), tmp_path / "ours.png")
    assert len(drawn) == 3
    assert (tmp_path / "ours.png").read_bytes() == (tmp_path / "matplotlibs.png").read_bytes()


@pytest.mark.parametrize(("classes", "widest"), [(10, 1100), (30, 2300), (31, 2300), (400, 2300)])
def test_a_confusion_matrix_of_many_classes_stays_a_figure(classes: int, widest: int, tmp_path: Path) -> None:
    """Of 200 classes it took 5.5 GB and half a minute, which ended runs whose training was over."""
    counts = np.random.default_rng(0).integers(0, 9, (classes, classes))
    confusion_matrix(tmp_path / "matrix.png", counts, [f"class {number}" for number in range(classes)], "many")
    with Image.open(tmp_path / "matrix.png") as image:
        assert max(image.size) < widest


def test_names_of_classes_are_no_formulas(tmp_path: Path) -> None:
    """Matplotlib takes what stands between two dollar signs for one, and refuses an empty one."""
    names = ["$", "$$", "US$_to_A$"]
    confusion_matrix(tmp_path / "matrix.png", np.eye(3, dtype=int), names, "prices")
    image_sheet(tmp_path / "sheet.png", np.zeros((2, 4, 4, 1)), np.eye(3)[:2], names, np.array([0, 1]), "prices")


@pytest.mark.parametrize("size", [(1, 16), (16, 1), (1, 1)])
def test_images_one_pixel_high_or_wide_keep_their_axes_and_colours(size: tuple[int, int], tmp_path: Path) -> None:
    """A run whose images were (1, 64, 1) failed after its training; (1, 16, 3) was drawn as 16x3 shades of grey."""
    for channels, colour in ((1, (0, 0, 0)), (3, (255, 0, 0))):
        images = np.broadcast_to(np.array(colour[:channels]) / 255, (2, *size, channels))
        image_sheet(tmp_path / "sheet.png", images, np.eye(3)[:2], ["a", "b", "c"], None, "a line")
        with Image.open(tmp_path / "sheet.png") as drawn:
            found = np.asarray(drawn.convert("RGB"))
        assert (found == colour).all(axis=-1).sum() > 1000


def test_the_figures_of_a_test_set_say_how_large_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers beside images had no name, and counts no total."""
    titles: list[str] = []
    monkeypatch.setattr(figures, "confusion_matrix", lambda *given: titles.append(given[-1]))
    monkeypatch.setattr(figures, "image_sheet", lambda *given: titles.append(given[-1]))
    judge = Classification((8, 8, 1), ("a", "b")).judge(CrossEntropy())
    judge.add(np.zeros((3, 8, 8, 1)), np.array([[2.0, 1.0]] * 3), np.array([0, 0, 1]))
    run: Any = SimpleNamespace(artifact=lambda name: tmp_path / Path(name).name)
    judge.draw(run, "a run")
    matrix, sheet = titles
    assert matrix == "a run\n2 of 3 test examples are right"
    assert sheet.startswith("a run: the first test images and their most probable classes (blue: true,")


@pytest.mark.parametrize("sizes", [(30,), (10, 10, 10), (23, 1, 6), (24, 6), (3,)])
def test_the_sheet_has_the_first_images_of_whatever_batches(
    sizes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets: list[Any] = []
    monkeypatch.setattr(figures, "confusion_matrix", lambda *_: None)
    monkeypatch.setattr(figures, "image_sheet", lambda *given: sheets.append(given))
    judge = Classification((1, 1, 1), ("a", "b")).judge(CrossEntropy())
    x, y = np.arange(sum(sizes)).reshape(-1, 1, 1, 1), np.arange(sum(sizes)) % 2
    for rows in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]):
        judge.add(x[rows], np.eye(2)[1 - y[rows]], y[rows])
    run: Any = SimpleNamespace(artifact=lambda name: tmp_path / Path(name).name)
    judge.draw(run, "a run")
    ((_, drawn, likely, _, labels, _),) = sheets
    assert drawn.ravel().tolist() == [*range(min(24, sum(sizes)))]
    assert labels.tolist() == y[: len(drawn)].tolist() == (1 - likely.argmax(axis=1)).tolist()
