"""Expected calibration error over equal-width bins of confidence (Guo et al., ICML 2017, eq. 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import PositiveInt

from pipeline.contracts import Metric
from pipeline.metrics.classification import probabilities
from pipeline.spec import spec


@spec
class CalibrationError(Metric):
    """`bins`: of confidence."""

    direction = "min"
    takes = "classes"
    of_probabilities = True

    bins: PositiveInt = 15

    def sums(self, logits: np.ndarray, labels: np.ndarray) -> Any:
        likely = probabilities(logits)
        confidence = likely.max(axis=1)
        correct = likely.argmax(axis=1) == labels
        bin_of = np.minimum((confidence * self.bins).astype(int), self.bins - 1)
        return np.bincount(bin_of, weights=correct - confidence, minlength=self.bins), len(labels)

    def value(self, sums: Any) -> float:
        gaps, examples = sums
        return float(np.abs(gaps).sum() / examples)
