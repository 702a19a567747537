"""What the metrics share that are a mean over examples."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from pipeline.contracts import Metric


class MeanOverExamples(Metric):
    """The mean over all examples of what `each` gives for those of a batch."""

    @abstractmethod
    def each(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """What each example of a batch gives, (N,): a number, or whether it is right."""

    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        # In float64, whatever the examples' numbers are kept in: of many in float16 a mean has three digits.
        return float(self.each(outputs, targets).mean(dtype=np.float64)) * len(targets), len(targets)

    def value(self, sums: Any) -> float:
        total, examples = sums
        return total / examples

    def of_examples(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray | None:
        """None of a metric that makes something else of the mean, such as its root, or that weights its examples: the
        interval is of the plain mean."""
        own, ours = type(self), MeanOverExamples
        is_mean = own.value is ours.value and own.sums is ours.sums
        return self.each(outputs, targets) if is_mean else None
