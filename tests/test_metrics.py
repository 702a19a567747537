"""metrics.py against scikit-learn, SciPy and torchmetrics, and what must hold for any logits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from sklearn import metrics as reference

from pipeline.metrics import classification as metrics
from pipeline.metrics.classification import METRICS, value_of

Case = tuple[np.ndarray, np.ndarray]


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
    assert all(isinstance(value, float) and np.isfinite(value) for value in result.values())
    assert all(0 <= result[name] <= 1 for name in ("accuracy", "top5_accuracy", "macro_f1"))
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
        assert value_of(name, wide + shift, labels) == pytest.approx(value_of(name, wide, labels), abs=1e-9), name


@given(cases())
def test_the_order_of_the_images_changes_nothing(case: Case) -> None:
    logits, labels = case
    order = np.random.default_rng(len(labels)).permutation(len(labels))
    for name in METRICS:
        shuffled = value_of(name, logits[order], labels[order])
        assert shuffled == pytest.approx(value_of(name, logits, labels), abs=1e-9), name


@given(cases(), st.integers(1, 40))
def test_batch_by_batch_is_the_same_as_at_once(case: Case, size: int) -> None:
    logits, labels = case
    for name, accumulator in METRICS.items():
        metric = accumulator()
        for first in range(0, len(labels), size):
            metric.add(logits[first : first + size], labels[first : first + size])
        assert metric.value() == pytest.approx(value_of(name, logits, labels), rel=1e-12, abs=1e-12), name


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
    labels[labels == classes - 1] = 0  # one class never occurs
    names, likely, predicted = range(classes), special.softmax(logits, axis=1), logits.argmax(axis=1)
    wanted = {
        "accuracy": reference.accuracy_score(labels, predicted),
        "top5_accuracy": reference.top_k_accuracy_score(labels, logits, k=5, labels=names) if classes > 5 else 1.0,
        "macro_f1": reference.f1_score(labels, predicted, labels=names, average="macro", zero_division=0),
        "cross_entropy": reference.log_loss(labels, likely, labels=names),
        "brier": np.square(likely - np.eye(classes)[labels]).sum(axis=1).mean(),
    }
    for name, value in wanted.items():
        assert value_of(name, logits, labels) == pytest.approx(value, rel=1e-9), name
    counts = reference.confusion_matrix(labels, predicted, labels=names)
    np.testing.assert_array_equal(metrics.confusion(logits, labels), counts)


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
    done = subprocess.run(
        [sys.executable, "-c", TORCHMETRICS, *paths], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for number, line in enumerate(done.stdout.splitlines()):
        case = example(*shapes[number], number)
        error, right, near = map(float, line.split())
        assert value_of("calibration_error", *case) == pytest.approx(error, abs=1e-6)  # torchmetrics adds in float32
        assert metrics.accuracy(*case) == pytest.approx(right, abs=1e-6)
        assert metrics.top5_accuracy(*case) == pytest.approx(near, abs=1e-6)
    assert len(done.stdout.splitlines()) == len(shapes)
