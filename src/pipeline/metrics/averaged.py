"""What the metrics share that are a mean over examples."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from pipeline.contracts import Metric


class MeanOverExamples(Metric):
    """The mean over all examples of what `mean` gives for a batch."""

    @abstractmethod
    def mean(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """Over the examples of one batch."""

    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        return self.mean(outputs, targets) * len(targets), len(targets)

    def value(self, sums: Any) -> float:
        total, examples = sums
        return total / examples
