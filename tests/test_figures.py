"""Figures of a training: classes of any number and name."""

from __future__ import annotations

from itertools import combinations
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
from pipeline.report.canvas import COLOURS, GREY, canvas, save
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


# How colours look to those who lack cones of one kind, in linear light: Machado, Oliveira & Fernandes, "A
# physiologically-based model for simulation of color vision deficiency", IEEE TVCG 15 (2009), severity 1.
VISION = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # of linear sRGB


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear sRGB, beside white."""
    x, y, z = np.cbrt(XYZ @ light / XYZ.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_no_two_colours_of_series_are_alike_whoever_looks(vision: str) -> None:
    """Orange and gold were 6 apart for those without green cones, of which 2 or 3 are seen at all."""
    seen = [lab(np.clip(VISION[vision] @ linear(colour), 1e-3, 1)) for colour in COLOURS]
    assert min(float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2)) > 15


def test_colours_stand_out_from_white() -> None:
    """WCAG 2: 3 for lines and marks, 4.5 for text, in which grey is used."""
    contrasts = {colour: 1.05 / (XYZ[1] @ linear(colour) + 0.05) for colour in (*COLOURS, GREY)}
    assert min(contrasts.values()) > 3 and contrasts[GREY] > 4.5


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
    assert sheet.startswith("a run: the first test images and their most probable classes (blue, outlined: true;")


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


def test_names_of_classes_that_no_font_has_are_noted(tmp_path: Path) -> None:
    """Each of their characters was a box, without a word. No font has characters for private use."""
    notes: list[str] = []
    run: Any = SimpleNamespace(artifact=lambda name: made(tmp_path / name), note=notes.append)
    for classes in (("café", "tea"), ("\ue000", "\ue001\ue000")):
        judge = Classification((2,), classes).judge(CrossEntropy())
        judge.add(np.zeros((4, 2)), np.eye(2)[[0, 1, 0, 1]], np.array([0, 1, 1, 0]))
        judge.draw(run, "title")
    said = "lack 2 of the characters in the names of classes, which are boxes there; predictions.csv has them"
    assert notes == [f"figures: the fonts of matplotlib here {said}"]


def made(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    return path
