"""What classifiers are measured by, in NumPy: from logits (N, classes) and labels (N,). No framework, no rounding.

The metrics of this folder add these up over batches; losses and stages use them too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Class probabilities, in float64."""
    return np.exp(log_softmax(logits))


def correct(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of each image (N,) whether its highest logit is the true class."""
    return logits.argmax(axis=1) == labels


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of images whose highest logit is the true class."""
    return float(correct(logits, labels).mean())


def among_five(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of each image (N,) whether its true class is among the five highest logits."""
    best = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    return (best == labels[:, None]).any(axis=1)


def negative_log_likelihood(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of each image (N,) the negative log-probability of the true class, in nats."""
    return -log_softmax(logits)[np.arange(len(labels)), labels]


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean negative log-probability of the true class, in nats."""
    return float(negative_log_likelihood(logits, labels).mean())


def distances(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of each image (N,) the squared distance of its probabilities from the one-hot label."""
    distance = probabilities(logits)
    distance[np.arange(len(labels)), labels] -= 1
    return np.square(distance).sum(axis=1)


def brier(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean squared distance of the probabilities from the one-hot label (Brier, 1950)."""
    return float(distances(logits, labels).mean())


def confusion(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts (classes, classes): rows are true classes, columns predicted ones."""
    classes = logits.shape[1]
    return np.bincount(labels * classes + logits.argmax(axis=1), minlength=classes**2).reshape(classes, classes)


class Mean:
    """The mean of what `function` gives, by the batches' sizes."""

    def __init__(self, function: Callable[[np.ndarray, np.ndarray], float]) -> None:
        self.function, self.total, self.seen = function, 0.0, 0

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        self.total += self.function(logits, labels) * len(labels)
        self.seen += len(labels)

    def value(self) -> float:
        return self.total / self.seen
