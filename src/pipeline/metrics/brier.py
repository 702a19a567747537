"""The mean squared distance of the probabilities from the one-hot label (Brier, 1950)."""

from __future__ import annotations

import numpy as np

from pipeline.metrics import classification
from pipeline.metrics.averaged import MeanOverExamples
from pipeline.spec import spec


@spec
class Brier(MeanOverExamples):
    """No settings."""

    direction = "min"
    takes = "classes"
    of_probabilities = True

    def each(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return classification.distances(logits, labels)
