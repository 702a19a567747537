"""The mean squared distance of outputs from targets, over all their numbers."""

from __future__ import annotations

import numpy as np

from pipeline.metrics.averaged import MeanOverExamples
from pipeline.spec import spec


@spec
class MeanSquaredError(MeanOverExamples):
    """No settings."""

    direction = "min"
    takes = "numbers"

    def each(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return np.square(outputs - targets).reshape(len(targets), -1).mean(axis=1)
