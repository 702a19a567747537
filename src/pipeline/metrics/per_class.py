"""Precision, recall and F1 of each class (van Rijsbergen, Information Retrieval, 1979), from counts alone.

As scikit-learn has them with `zero_division=0`: a class without an example has recall 0, and one that is never
predicted precision 0. The means are over the classes that have an example or are predicted.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from pipeline.contracts import Metric


@dataclass(frozen=True)
class Counts:
    """Examples by class, (classes,) each: predicted as it and of it, predicted as it, of it."""

    correct: np.ndarray
    predicted: np.ndarray
    actual: np.ndarray

    @classmethod
    def of_confusion(cls, counts: np.ndarray) -> Counts:
        """From a confusion matrix (classes, classes), whose rows are true classes."""
        return cls(np.diag(counts), counts.sum(axis=0), counts.sum(axis=1))

    @property
    def precision(self) -> np.ndarray:
        return _share(self.correct, self.predicted)

    @property
    def recall(self) -> np.ndarray:
        return _share(self.correct, self.actual)

    @property
    def f1(self) -> np.ndarray:
        return _share(2 * self.correct, self.predicted + self.actual)

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """The three of them by name."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1}

    def mean(self, of_classes: np.ndarray) -> float:
        """Over the classes (classes,) that have an example or are predicted; 0 without an example."""
        seen = (self.predicted + self.actual) > 0
        return float(of_classes[seen].mean()) if seen.any() else 0.0


class MeanOverClasses(Metric):
    """The mean of what `of_classes` gives, every class that occurs weighing the same."""

    direction = "max"
    takes = "classes"

    @abstractmethod
    def of_classes(self, counts: Counts) -> np.ndarray:
        """One number for each class."""

    def sums(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        predicted, classes = logits.argmax(axis=1), logits.shape[1]
        rows = (labels[predicted == labels], predicted, labels)
        return np.stack([np.bincount(row, minlength=classes) for row in rows])

    def value(self, sums: np.ndarray) -> float:
        counts = Counts(*sums)
        return counts.mean(self.of_classes(counts))


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
