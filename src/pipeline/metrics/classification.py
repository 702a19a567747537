"""Metrics of a classifier, in NumPy: from logits (N, classes) and labels (N,). No framework, no rounding.

A function measures what is at hand; an `Accumulator` takes a test set batch by batch and keeps only sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np


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


def confusion(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts (classes, classes): rows are true classes, columns predicted ones."""
    classes = logits.shape[1]
    return np.bincount(labels * classes + logits.argmax(axis=1), minlength=classes**2).reshape(classes, classes)


class Accumulator(Protocol):
    """A metric over batches."""

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """One batch: logits (B, classes), labels (B,)."""
        ...

    def value(self) -> float:
        """The metric of all batches so far."""
        ...


class Mean:
    """The mean of what `function` gives, by the batches' sizes."""

    def __init__(self, function: Callable[[np.ndarray, np.ndarray], float]) -> None:
        self.function, self.total, self.seen = function, 0.0, 0

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        self.total += self.function(logits, labels) * len(labels)
        self.seen += len(labels)

    def value(self) -> float:
        return self.total / self.seen


class MacroF1:
    """F1 of each class, averaged; a class that is neither present nor predicted counts 0."""

    def __init__(self) -> None:
        self.counts: np.ndarray | int = 0

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        self.counts = self.counts + confusion(logits, labels)

    def value(self) -> float:
        counts = np.asarray(self.counts)
        n_correct = np.diag(counts)
        size = counts.sum(axis=0) + counts.sum(axis=1)
        return float(np.divide(2 * n_correct, size, out=np.zeros(len(n_correct)), where=size > 0).mean())


class CalibrationError:
    """Expected calibration error over equal-width bins of confidence (Guo et al., ICML 2017, eq. 3)."""

    def __init__(self, bins: int = 15) -> None:
        self.gaps, self.seen = np.zeros(bins), 0

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        likely = probabilities(logits)
        confidence, bins = likely.max(axis=1), len(self.gaps)
        correct = likely.argmax(axis=1) == labels
        bin_of = np.minimum((confidence * bins).astype(int), bins - 1)
        self.gaps += np.bincount(bin_of, weights=correct - confidence, minlength=bins)
        self.seen += len(labels)

    def value(self) -> float:
        return float(np.abs(self.gaps).sum() / self.seen)


LESS_IS_BETTER = ("cross_entropy", "brier", "calibration_error")
METRICS: dict[str, Callable[[], Accumulator]] = {
    "accuracy": lambda: Mean(accuracy),
    "top5_accuracy": lambda: Mean(top5_accuracy),
    "macro_f1": MacroF1,
    "cross_entropy": lambda: Mean(cross_entropy),
    "brier": lambda: Mean(brier),
    "calibration_error": CalibrationError,
}


def value_of(name: str, logits: np.ndarray, labels: np.ndarray) -> float:
    """A metric of METRICS of what is at hand."""
    metric = METRICS[name]()
    metric.add(logits, labels)
    return metric.value()
