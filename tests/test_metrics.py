"""The metrics against scikit-learn, SciPy and torchmetrics, and what must hold for any logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import script, without_place
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from sklearn import metrics as reference

from pipeline.contracts import Metric
from pipeline.experiment.metrics import metrics_of, words
from pipeline.metrics import classification as metrics
from pipeline.metrics.of_torchmetrics import Torchmetrics
from pipeline.metrics.per_class import Counts
from pipeline.metrics.total import Total

Case = tuple[np.ndarray, np.ndarray]
METRICS = [word for word, cls in words().items() if cls.takes == "classes"]
OF_NUMBERS = [word for word, cls in words().items() if cls.takes == "numbers"]
SHARES = ("accuracy", "top5_accuracy", "macro_f1", "macro_precision", "macro_recall")


def made(word: str) -> Metric:
    """The metric that a word of `training.metrics` names."""
    found = metrics_of([word])
    assert isinstance(found, tuple)
    assert isinstance(found[0], Metric)
    return found[0]


def value_of(word: str, outputs: np.ndarray, targets: np.ndarray, size: int | None = None) -> float:
    """Of what is at hand, in batches of `size`."""
    total = Total(made(word))
    for first in range(0, len(targets), size or len(targets)):
        rows = slice(first, first + (size or len(targets)))
        total.add(outputs[rows], targets[rows])
    found = total.measured()
    assert found is not None, total.fault
    return found.value


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Logits, often with ties, and labels; some classes are missing."""
    images, classes = draw(st.integers(1, 40)), draw(st.integers(2, 25))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = generator.normal(0, draw(st.sampled_from([0.01, 1.0, 100.0])), (images, classes))
    if draw(st.booleans()):
        logits = np.round(logits)
    present = generator.integers(1, classes + 1)
    return logits.astype(draw(st.sampled_from(["float32", "float64"]))), generator.integers(0, present, images)


def example(images: int, classes: int, seed: int) -> Case:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, images)
    return generator.normal(0, 2, (images, classes)) + 3 * np.eye(classes)[labels], labels


@given(cases())
def test_bounds(case: Case) -> None:
    result = {name: value_of(name, *case) for name in METRICS}
    assert all(np.isfinite(value) for name, value in result.items() if name != "perplexity")
    assert all(0 <= result[name] <= 1 for name in SHARES)
    assert -1e-12 <= result["calibration_error"] <= 1 + 1e-12
    assert 0 <= result["brier"] <= 2 + 1e-12
    assert result["cross_entropy"] >= 0
    assert result["top5_accuracy"] >= result["accuracy"]  # ties included
    if case[0].shape[1] <= 5:
        assert result["top5_accuracy"] == 1


@given(cases(), st.integers(-1000, 1000))
def test_a_shift_of_the_logits_changes_nothing(case: Case, shift: int) -> None:
    logits, labels = case
    wide = np.round(logits.astype("float64") * 1024) / 1024  # so that the shifted logits are exact
    for name in METRICS:
        assert value_of(name, wide + shift, labels) == pytest.approx(
            value_of(name, wide, labels), rel=1e-9, abs=1e-9
        ), name


@given(cases())
def test_the_order_of_the_images_changes_nothing(case: Case) -> None:
    logits, labels = case
    order = np.random.default_rng(len(labels)).permutation(len(labels))
    for name in METRICS:
        shuffled = value_of(name, logits[order], labels[order])
        assert shuffled == pytest.approx(value_of(name, logits, labels), rel=1e-9, abs=1e-9), name


@given(cases(), st.integers(1, 40))
def test_batch_by_batch_is_the_same_as_at_once(case: Case, size: int) -> None:
    for name in METRICS:
        assert value_of(name, *case, size) == pytest.approx(value_of(name, *case), rel=1e-10, abs=1e-12), name


@given(cases())
def test_probabilities_are_scipys(case: Case) -> None:
    wide = case[0].astype("float64")
    np.testing.assert_allclose(metrics.log_softmax(case[0]), special.log_softmax(wide, axis=1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(metrics.probabilities(case[0]).sum(axis=1), 1, rtol=1e-12)
    picked = wide[np.arange(len(wide)), case[1]]
    loss = (special.logsumexp(wide, axis=1) - picked).mean()
    assert metrics.cross_entropy(*case) == pytest.approx(loss, rel=1e-12, abs=1e-12)


def test_huge_logits_stay_finite() -> None:
    logits = np.array([[1e30, 0, -1e30], [0, 3e38, 0]], "float32")
    assert metrics.cross_entropy(logits, np.array([0, 1])) == 0
    assert metrics.brier(logits, np.array([1, 1])) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [3, 10, 30])
def test_scikit_learn_agrees(classes: int, seed: int) -> None:
    logits, labels = example(200, classes, seed)
    labels[labels == classes - 1] = 0  # one class has no example, another is never predicted either
    labels[labels == 1], logits[:, 1] = 0, -9
    names, likely, predicted = range(classes), special.softmax(logits, axis=1), logits.argmax(axis=1)
    wanted = {
        "accuracy": reference.accuracy_score(labels, predicted),
        "top5_accuracy": reference.top_k_accuracy_score(labels, logits, k=5, labels=names) if classes > 5 else 1.0,
        "macro_f1": reference.f1_score(labels, predicted, average="macro", zero_division=0),
        "macro_recall": reference.recall_score(labels, predicted, average="macro", zero_division=0),
        "macro_precision": reference.precision_score(labels, predicted, average="macro", zero_division=0),
        "cross_entropy": reference.log_loss(labels, likely, labels=names),
        "brier": np.square(likely - np.eye(classes)[labels]).sum(axis=1).mean(),
    }
    for name, value in wanted.items():
        assert value_of(name, logits, labels) == pytest.approx(value, rel=1e-9), name
    counts = reference.confusion_matrix(labels, predicted, labels=names)
    np.testing.assert_array_equal(metrics.confusion(logits, labels), counts)


def test_metrics_of_numbers_are_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    targets = generator.normal(5, 2, (90, 3))
    outputs = targets + generator.normal(0, 0.5, targets.shape)
    flat = (targets.ravel(), outputs.ravel())
    wanted = {
        "mean_absolute_error": reference.mean_absolute_error(*flat),
        "mean_squared_error": reference.mean_squared_error(*flat),
        "root_mean_squared_error": reference.root_mean_squared_error(*flat),
    }
    assert set(wanted) == set(OF_NUMBERS)
    for name, value in wanted.items():
        assert value_of(name, outputs, targets, 40) == pytest.approx(value, rel=1e-12), name


def test_the_counts_of_each_class_are_scikit_learns() -> None:
    logits, labels = example(300, 7, 0)
    labels[labels == 3] = 4
    counts = Counts.of_confusion(metrics.confusion(logits, labels))
    found = (counts.precision, counts.recall, counts.f1, counts.actual)
    wanted = reference.precision_recall_fscore_support(labels, logits.argmax(axis=1), labels=range(7), zero_division=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert made("macro_f1").value(made("macro_f1").sums(logits, labels)) == counts.mean(counts.f1)


@pytest.mark.parametrize("size", [7, 200])
def test_a_metric_of_torchmetrics_is_scikit_learns(size: int) -> None:
    logits, labels = example(200, 6, 1)
    likely = special.softmax(logits, axis=1)
    wanted = reference.roc_auc_score(labels, likely, multi_class="ovr")
    assert value_of("torchmetrics.MulticlassAUROC", logits, labels, size) == pytest.approx(wanted, rel=1e-7)
    assert made("torchmetrics.MulticlassAUROC").direction == "max"
    assert value_of("torchmetrics.AUROC", logits, labels, size) == pytest.approx(wanted, rel=1e-7)  # of any task
    outputs, targets = logits[:, 0], logits[:, 0] + likely[:, 1]
    wanted = reference.r2_score(targets, outputs)
    assert value_of("torchmetrics.R2Score", outputs, targets, size) == pytest.approx(wanted, rel=1e-9)


DIRECTIONS: dict[str, Any] = {
    "max": {"metric": "Accuracy", "arguments": {"task": "multiclass", "top_k": 5}},
    "min": {"metric": "CalibrationError", "arguments": {"task": "multiclass"}},
    "none": {"metric": "ConfusionMatrix", "arguments": {"task": "multiclass"}},
}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_direction_of_a_class_for_several_tasks_is_that_of_what_it_makes(direction: str) -> None:
    assert Torchmetrics(**DIRECTIONS[direction]).direction == direction


class Gives(Metric):
    """Sums `sums` and comes to what `value` makes of them."""

    direction = "max"

    def __init__(self, sums: Any, value: Any) -> None:
        self.of_batch, self.of_all = sums, value

    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        return self.of_batch(outputs, targets)

    def value(self, sums: Any) -> Any:
        return self.of_all(sums)


NO_NUMBERS: dict[str, Any] = {
    "value() gave nan, not a number": lambda _: np.float64("nan"),
    "value() gave None, not a number": lambda _: None,
    "value() gave a str, not a number": str,
    "value() gave a bool, not a number": bool,
    "value() gave a ndarray of shape (2,), not a number": lambda _: np.ones(2),
    "value() failed (ZeroDivisionError: float division by zero)": lambda sums: sums / 0,
}


@pytest.mark.parametrize("fault", NO_NUMBERS)
def test_what_is_no_number_is_named(fault: str) -> None:
    total = Total(Gives(lambda *_: 1.0, NO_NUMBERS[fault]))
    total.add(np.zeros((2, 3)), np.zeros(2, int))
    assert (total.measured(), without_place(str(total.fault))) == (None, fault)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_sums_of_any_kind_add_up(sizes: list[int]) -> None:
    """A tuple item by item; bytes and bools of NumPy in a type that holds their sum."""
    sums = {
        "a number": lambda _, y: len(y),
        "a tuple": lambda _, y: (len(y), 0),
        "a list": lambda _, y: [len(y), 0],
        "bytes": lambda _, y: np.ones(3, np.uint8) * len(y),
        "a bool": lambda _, y: np.array([len(y) > 0] * len(y)).sum(dtype=np.uint8),
        "half precision": lambda _, y: np.float16(len(y)),
    }
    for name, of_batch in sums.items():
        total = Total(Gives(of_batch, lambda sums: sums[0] if np.ndim(sums) else sums))
        for size in sizes * 60:
            total.add(np.zeros((size, 2)), np.zeros(size, int))
        found = total.measured()
        assert found is not None
        assert found.value == sum(sizes) * 60, name


TORCHMETRICS = """
import sys, numpy as np, torch, torchmetrics.functional.classification as tm
for path in sys.argv[1:]:
    with np.load(path) as case:
        logits, labels = torch.from_numpy(case["logits"]), torch.from_numpy(case["labels"])
    likely, classes = logits.softmax(1), logits.shape[1]
    print(
        float(tm.multiclass_calibration_error(likely, labels, num_classes=classes, n_bins=15, norm="l1")),
        float(tm.multiclass_accuracy(likely, labels, num_classes=classes, average="micro")),
        float(tm.multiclass_accuracy(likely, labels, num_classes=classes, average="micro", top_k=5)),
    )
"""


def test_torchmetrics_agrees(tmp_path: Path) -> None:
    shapes = [(500, 10), (37, 10), (400, 20)]
    for number, (images, classes) in enumerate(shapes):
        logits, labels = example(images, classes, number)
        np.savez(tmp_path / f"{number}.npz", logits=logits, labels=labels)
    paths = [str(tmp_path / f"{number}.npz") for number in range(len(shapes))]
    (tmp_path / "theirs.py").write_text(TORCHMETRICS)
    done = script(tmp_path, "torch", tmp_path / "theirs.py", *paths)
    assert done.returncode == 0, done.stderr
    for number, line in enumerate(done.stdout.splitlines()):
        case = example(*shapes[number], number)
        error, right, near = map(float, line.split())
        assert value_of("calibration_error", *case) == pytest.approx(error, abs=1e-6)  # torchmetrics adds in float32
        assert metrics.accuracy(*case) == pytest.approx(right, abs=1e-6)
        assert value_of("top5_accuracy", *case) == pytest.approx(near, abs=1e-6)
    assert len(done.stdout.splitlines()) == len(shapes)
