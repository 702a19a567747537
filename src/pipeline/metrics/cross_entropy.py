"""The mean negative log-probability of the true class."""

from __future__ import annotations

import numpy as np

from pipeline.metrics import classification
from pipeline.metrics.averaged import MeanOverExamples
from pipeline.spec import spec


@spec
class CrossEntropy(MeanOverExamples):
    """No settings."""

    direction = "min"
    takes = "classes"
    of_probabilities = True
    unit = "nats"

    def each(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return classification.negative_log_likelihood(logits, labels)
