"""Figures of merit of a classifier, in NumPy: from logits (N, classes) and labels (N,). No framework, no rounding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.errors import RunError
from pipeline.machine.precision import FORMATS


def not_finite(logits: np.ndarray) -> tuple[int, float] | None:
    """The first image whose logits (N, classes) are not all finite, and the value; None where there is none."""
    rows, columns = np.nonzero(~np.isfinite(logits))
    return (int(rows[0]), float(logits[rows[0], columns[0]])) if rows.size else None


def check_saved(logits: np.ndarray, what: str, run: str, precision: str) -> None:
    """That the logits (N, classes) of a saved run are numbers: argmax makes a class of a NaN too. Raises RunError.

    `what` they are of, with a `{}` for the number of the image; `run`: its id.
    """
    wrong = not_finite(logits)
    if wrong is None:
        return
    narrow = FORMATS[precision].compute == "float16"
    hint = "float16 overflows: choose precision=fp32" if narrow else "the run diverged: train it again"
    raise RunError(f"run={run}: the logits of {what.format(wrong[0])} are {wrong[1]} at precision={precision}; {hint}")


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Class probabilities, in float64."""
    return np.exp(log_softmax(logits))


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of images whose highest logit is the true class."""
    return float((logits.argmax(axis=1) == labels).mean())


def top5_accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of images whose true class is among the five highest logits."""
    best = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    return float((best == labels[:, None]).any(axis=1).mean())


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean negative log-probability of the true class, in nats."""
    return float(-log_softmax(logits)[np.arange(len(labels)), labels].mean())


def brier(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean squared distance of the probabilities from the one-hot label (Brier, 1950)."""
    distance = probabilities(logits)
    distance[np.arange(len(labels)), labels] -= 1
    return float(np.square(distance).sum(axis=1).mean())


def macro_f1(logits: np.ndarray, labels: np.ndarray) -> float:
    """F1 of each class, averaged; a class that is neither present nor predicted counts 0."""
    counts = confusion(logits, labels)
    n_correct = np.diag(counts)
    size = counts.sum(axis=0) + counts.sum(axis=1)
    return float(np.divide(2 * n_correct, size, out=np.zeros(len(n_correct)), where=size > 0).mean())


def calibration_error(logits: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error over equal-width bins of confidence (Guo et al., ICML 2017, eq. 3)."""
    likely = probabilities(logits)
    confidence = likely.max(axis=1)
    right = likely.argmax(axis=1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(right[place == b].sum() - confidence[place == b].sum()) for b in range(bins)]
    return float(sum(gaps) / len(labels))


def confusion(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts (classes, classes): rows are true classes, columns predicted ones."""
    classes = logits.shape[1]
    return np.bincount(labels * classes + logits.argmax(axis=1), minlength=classes**2).reshape(classes, classes)


LESS_IS_BETTER = ("cross_entropy", "brier", "calibration_error")
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "top5_accuracy": top5_accuracy,
    "macro_f1": macro_f1,
    "cross_entropy": cross_entropy,
    "brier": brier,
    "calibration_error": calibration_error,
}
