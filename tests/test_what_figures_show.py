"""What stands in a figure is what was measured: each number at its own place, with its own name."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pipeline.report import attention, comparison, figures, grid_figure, long_range
from pipeline.report.canvas import BLUE, GREY, ORANGE, save
from pipeline.report.comparison import Side
from pipeline.report.intervals import half_width
from pipeline.runs.fit import Epoch


def drawn_by(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that the module saves, once they are saved."""
    found: list[Figure] = []

    def kept(figure: Figure, path: Path) -> None:
        save(figure, path)
        found.append(figure)

    monkeypatch.setattr(module, "save", kept)
    return found


def line(axes: Axes, label: str) -> list[tuple[float, float]]:
    """The points of a line of the legend."""
    (found,) = (one for one in axes.lines if str(one.get_label()).startswith(label))
    return [(float(x), float(y)) for x, y in np.asarray(found.get_xydata())]


@pytest.mark.parametrize("passes", [None, 0.5])
def test_curves_of_training_and_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: float | None
) -> None:
    """Along epochs, or along the steps that were taken where a validation is counted by them."""
    found = drawn_by(figures, monkeypatch)
    epochs = [
        Epoch(n, 1.0, steps, 9, 1.0 / n, 0.1 * n, 2.0 / n, 0.2 * n, passes) for n, steps in ((1, 30), (2, 30), (3, 10))
    ]
    tested = {"loss": 0.5, "accuracy": 0.75}
    figures.training_curves(tmp_path / "curves.png", epochs, tested, "a run", "the last weights")
    ((loss, accuracy),) = (figure.axes for figure in found)
    along = [1, 2, 3] if passes is None else [30, 60, 70]
    assert (loss.get_xlabel(), loss.get_ylabel()) == ("epoch" if passes is None else "step", "mean loss")
    assert line(loss, "training") == [(at, 1.0 / n) for n, at in enumerate(along, 1)]
    assert line(loss, "validation") == [(at, 2.0 / n) for n, at in enumerate(along, 1)]
    assert accuracy.get_ylabel() == "accuracy"
    assert line(accuracy, "training") == [(at, 0.1 * n) for n, at in enumerate(along, 1)]
    assert line(accuracy, "validation") == [(at, 0.2 * n) for n, at in enumerate(along, 1)]
    for axes, value in ((loss, 0.5), (accuracy, 0.75)):
        assert {y for _, y in line(axes, f"test, the last weights: {value:.4f}")} == {value}


def test_curves_of_thousands_of_epochs_are_lines_without_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 marks were a broad band, in which nothing of the second curve was seen."""
    found = drawn_by(figures, monkeypatch)
    for count in (1, 3000):  # a line of one point shows nothing
        epochs = [Epoch(n, 1.0, 30, 9, 1.0 / n, 0.5, 2.0 / n, 0.5) for n in range(1, count + 1)]
        figures.training_curves(tmp_path / "curves.png", epochs, {"loss": 0.5}, "a run", "the last weights")
    few, many = ([one.get_marker() for one in figure.axes[0].lines[:2]] for figure in found)
    assert (few, many) == (["o", "s"], ["None", "None"])


@pytest.mark.parametrize("count", [2, 10, 60])
def test_the_legend_of_curves_covers_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """It lay where it covered least, which was at times the line of the test."""
    found = drawn_by(figures, monkeypatch)
    epochs = [Epoch(n, 1.0, 30, 9, 1.0 / n, 1 - 0.7 / n, 2.0 / n, 1 - 0.8 / n) for n in range(1, count + 1)]
    tested = {"loss": 2.0 / count, "accuracy": 1 - 0.8 / count}
    figures.training_curves(tmp_path / "curves.png", epochs, tested, "a run", "weights of the last epoch")
    for axes in found[0].axes:
        legend = axes.get_legend()
        assert legend is not None
        assert not axes.get_window_extent().overlaps(legend.get_window_extent())
        assert legend.get_window_extent().y0 >= 0  # and is not cut off


def test_a_confusion_matrix_has_a_row_for_each_true_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class without examples divides nothing by zero."""
    found = drawn_by(figures, monkeypatch)
    counts = np.array([[6, 2, 0], [1, 3, 0], [0, 0, 0]])
    figures.confusion_matrix(tmp_path / "matrix.png", counts, ["cat", "dog", "owl"], "a run")
    axes = found[0].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    shares = np.asarray(axes.images[0].get_array())
    assert shares.tolist() == [[0.75, 0.25, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]
    texts = {text.get_position(): text.get_text() for text in axes.texts}  # (column, row)
    assert texts == {(0, 0): "6", (1, 0): "2", (0, 1): "1", (1, 1): "3"}
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == ["cat", "dog", "owl"]


def test_of_many_classes_each_name_stands_at_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn_by(figures, monkeypatch)
    names = [f"c{number}" for number in range(70)]
    figures.confusion_matrix(tmp_path / "matrix.png", np.eye(70, dtype=int), names, "a run")
    axes = found[0].axes[0]
    assert not axes.texts
    shown = {int(at): tick.get_text() for at, tick in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    assert shown == {number: f"c{number}" for number in range(0, 70, 3)}


@pytest.mark.parametrize("outputs", [1, 10])
def test_numbers_are_drawn_against_the_actual_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: int
) -> None:
    found = drawn_by(figures, monkeypatch)
    actual = np.random.default_rng(0).normal(size=(20, outputs))
    predicted = actual + np.random.default_rng(1).normal(size=(20, outputs))
    figures.against_actual(tmp_path / "actual.png", actual, predicted, "a run")
    panels = found[0].axes
    assert len(panels) == min(outputs, 8)
    assert found[0].get_suptitle() == ("a run" if outputs == 1 else "a run (the first 8 of 10 outputs)")
    for number, axes in enumerate(panels):
        diagonal, points = axes.lines
        both = actual[:, number], predicted[:, number]
        assert np.array_equal(np.asarray(points.get_xydata()), np.stack(both, axis=1))
        assert np.asarray(diagonal.get_xydata()).tolist() == [[np.min(both)] * 2, [np.max(both)] * 2]
        assert axes.get_xlabel() == ("actual" if outputs == 1 else f"actual, output {number}")
        assert axes.get_ylabel() == "predicted"


def test_beside_an_image_stand_its_own_most_probable_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blue where the true class is, orange where the first guess is another; blue too where nobody knows."""
    found = drawn_by(figures, monkeypatch)
    likely = np.array([[0.1, 0.2, 0.7, 0.0], [0.5, 0.3, 0.0, 0.2]])
    images = np.stack([np.full((2, 2, 1), -1.0), np.full((2, 2, 1), 3.0)])
    for labels, colours in (
        (np.array([2, 1]), [[BLUE, GREY, GREY], [ORANGE, BLUE, GREY]]),
        (None, [[BLUE, GREY, GREY]] * 2),
    ):
        path = tmp_path / "sheet.png"
        figures.image_sheet(path, images, likely, ["a", "b", "c", "d"], labels, "some", ["one.png", "x" * 40 + "7.png"])
        (axes,) = found.pop().axes
        names = [text.get_text() for text in axes.texts]
        assert names[:4] == ["one.png", "c  0.70", "b  0.20", "a  0.10"]
        assert names[5:] == ["a  0.50", "b  0.30", "d  0.20"]
        assert len(names[4]) == 32 and names[4].endswith("x7.png")
        bars = [bar for bar in axes.patches if isinstance(bar, Rectangle) and bar.get_fill()]
        assert [bar.get_width() / 1.1 for bar in bars] == pytest.approx([0.7, 0.2, 0.1, 0.5, 0.3, 0.2])
        assert [list(bar.get_facecolor())[:3] for bar in bars] == [rgb(colour) for three in colours for colour in three]
        outlined = [list(bar.get_edgecolor())[-1] == 1 for bar in bars]  # printed in grey, the colours are alike
        assert outlined == [colour == BLUE and labels is not None for three in colours for colour in three]
        assert [np.asarray(image.get_array()).ravel()[0] for image in axes.images] == [0.0, 1.0]
        assert [image.get_clim() for image in axes.images] == [(0, 1)] * 2
        assert axes.figure.get_suptitle() == "some; black is -1 and white 3"


def rgb(colour: str) -> list[float]:
    """Of `#2b6cb0`."""
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def test_stages_side_by_side_show_their_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn_by(comparison, monkeypatch)
    accuracies = [0.70, 0.72, 0.77]
    sides = [
        Side("one", [(1, 0.5, 0.4, 0.65), (2, 0.7, 0.6, 0.85)], accuracies, (1200.0, 900.0, 1900.0)),
        Side("two", [(1, 0.3, 0.2, 0.35)], [0.6], (50.0, 40.0, 70.0)),
    ]
    comparison.draw(tmp_path / "comparison.png", sides, "both")
    curves, test, rates = found[0].axes
    assert line(curves, "one") == [(1, 0.5), (2, 0.7)]
    shades = [one for one in curves.collections if isinstance(one, PolyCollection)]
    ends = [np.asarray(one.get_paths()[0].vertices) for one in shades]
    assert [(each[:, 1].min(), each[:, 1].max()) for each in ends] == [(0.4, 0.85), (0.2, 0.35)]
    x = [np.asarray(one.get_xdata()).tolist() for one in test.lines]
    half = half_width(accuracies)
    assert half is not None
    mean = sum(accuracies) / 3
    assert x == [accuracies, pytest.approx([mean - half, mean + half]), [pytest.approx(mean)], [0.6]]
    assert [text.get_text() for text in test.texts] == ["0.7300", "0.6000"]
    drawn = [np.asarray(one.get_xdata()).tolist() for one in rates.lines]
    assert drawn == [[900.0, 1900.0], [1200.0], [40.0, 70.0], [50.0]]
    assert [text.get_text() for text in rates.texts] == ["1,200", "50"]
    assert rates.get_xlabel() == "training, 1000 images/s" and rates.get_xlim()[0] == 0
    assert rates.xaxis.get_major_formatter()(1500, None) == "1.5"


def test_the_dots_of_a_grid_are_its_runs_and_their_median(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn_by(grid_figure, monkeypatch)
    series = {"adam": [[1.0, 2.0, 9.0], []], "sgd": [[4.0], [5.0, 7.0]]}
    words: Any = {"axis": "loss", "rows": "model", "legend": "optimizer", "title": "a grid"}
    grid_figure.dots(tmp_path / "grid.png", ["mlp", "cnn"], series, **words, remarks=["", "adam: failed"])
    (axes,) = found[0].axes
    points = [np.asarray(one.get_xydata()).tolist() for one in axes.lines if len(np.asarray(one.get_xdata()))]
    assert points == [
        [[1.0, 0.0], [2.0, 0.0], [9.0, 0.0]],
        [[2.0, 0.0]],
        [[4.0, 0.0]],
        [[5.0, 1.0], [7.0, 1.0]],
        [[6.0, 1.0]],
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["mlp", "cnn"]
    assert axes.get_ylim() == (1.5, -0.5)  # from top to bottom


def test_the_best_trial_so_far_knows_nothing_of_later_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn_by(grid_figure, monkeypatch)
    points = [(0, 5.0), (1, 7.0), (2, 3.0), (4, 4.0)]
    grid_figure.history(tmp_path / "history.png", points, "loss", min, "a search")
    (axes,) = found[0].axes
    assert line(axes, "a trial") == points
    assert line(axes, "the best so far") == [(0, 5.0), (1, 5.0), (2, 3.0), (4, 3.0)]
    assert axes.lines[1].get_drawstyle() == "steps-post"


def test_bars_over_a_distance_go_from_the_least_to_the_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = drawn_by(long_range, monkeypatch)
    recalled = {"gru": {16: [0.5, 0.6, 0.9], 4: [1.0]}}
    times = {"gru": {64: (0.002, 0.001, 0.005)}}
    words: Any = {"whose": "process", "guess": 0.25, "title": "a study"}
    long_range.figure(tmp_path / "recall.png", recalled, times, {"gru": {64: 100.0}}, **words)
    accuracy, time, memory = found[0].axes
    for axes, middle, ends in (
        (accuracy, [(4, 1.0), (16, 0.6)], [[1.0, 1.0], [0.5, 0.9]]),
        (time, [(64, 2.0)], [[1.0, 5.0]]),
    ):
        (container,) = axes.containers
        assert np.asarray(container[0].get_xydata()) == pytest.approx(np.array(middle))
        bars = container[2][0].get_segments()
        assert np.array([bar[:, 1] for bar in bars]) == pytest.approx(np.array(ends))
    assert line(memory, "gru") == [(64, 100.0)]
    assert {y for _, y in line(accuracy, "a guess")} == {0.25}


def test_a_map_of_attention_is_that_of_its_layer_and_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows attend, columns are attended to: in the figure and on the page, of two sequences of unequal length too."""
    found = drawn_by(attention, monkeypatch)
    maps = np.random.default_rng(0).random((2, 3, 4, 5))
    attending, attended = list("abcd"), list("vwxyz")
    attention.figure(tmp_path / "maps.png", maps, "a model", attending, attended)
    *panels, _ = found[0].axes
    for (layer, head), axes in zip(np.ndindex(2, 3), panels, strict=True):
        assert np.array_equal(np.asarray(axes.images[0].get_array()), maps[layer, head])
        assert axes.get_title() == (f"head {head}" if layer == 0 else "")
        assert axes.get_ylabel() == (f"layer {layer}" if head == 0 else "")
        assert [label.get_text() for label in axes.get_xticklabels()] == attended
        assert [label.get_text() for label in axes.get_yticklabels()] == attending
    many = np.full((9, 1, 2, 2), 0.5)
    attention.figure(tmp_path / "many.png", many, "a model")
    assert "a model (the first 8 layers and 1 heads)" in found[1].get_suptitle()
    attention.page(tmp_path / "page.html", maps, attending, "a </script> model", attended)
    text = (tmp_path / "page.html").read_text()
    assert "</script> model" not in text
    named = re.search(r"^const data = (.*?);?$", text, re.MULTILINE)
    assert named is not None
    data = json.loads(named[1])
    assert (data["layers"], data["heads"], data["length"], data["width"]) == maps.shape
    assert (data["tokens"], data["signs"], data["attended"]) == (attending, attending, attended)
    attention.page(tmp_path / "unseen.html", maps, ["a", "\r", "\u202e", "\n"], "a model", attended)
    unseen = re.search(r"^const data = (.*?);?$", (tmp_path / "unseen.html").read_text(), re.MULTILINE)
    assert unseen is not None
    assert json.loads(unseen[1])["signs"] == ["a", "\\r", "\\u202e", "↵"]
    weights = np.frombuffer(base64.b64decode(data["weights"]), np.uint8).reshape(maps.shape)
    assert np.abs(weights / 255 - maps).max() <= 0.5 / 255 + 1e-12
