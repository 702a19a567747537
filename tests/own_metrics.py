"""Metrics of a user's own: one that is right, and some that give no number."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.contracts import Metric
from pipeline.spec import spec


@spec
class Recall(Metric):
    """The share of the examples of class `digit` that are found."""

    direction = "max"

    digit: int = 0

    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        found = outputs.argmax(axis=1)[targets == self.digit] == self.digit
        return found.sum(), len(found)

    def value(self, sums: Any) -> Any:
        return sums[0] / sums[1]


@spec
class Accuracy(Recall):
    """Another one than the task's."""


@spec
class Named(Recall):
    name = "found"


@spec
class Text(Recall):
    def value(self, sums: Any) -> Any:
        return "0.9"


@spec
class Nothing(Recall):
    def value(self, sums: Any) -> Any:
        return None


@spec
class Each(Recall):
    def value(self, sums: Any) -> Any:
        return np.array(sums)


@spec
class Broken(Recall):
    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        return outputs[:, 99]


@spec
class Writes(Recall):
    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        outputs -= outputs.max(axis=1, keepdims=True)
        return super().sums(outputs, targets)


@spec
class Sideways(Recall):
    direction = "up"  # type: ignore[assignment]


@spec
class Undirected(Metric):
    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        return len(targets)

    def value(self, sums: Any) -> float:
        return float(sums)
