"""The share of examples whose highest logit is the true class."""

from __future__ import annotations

import numpy as np

from pipeline.metrics import classification
from pipeline.metrics.averaged import MeanOverExamples
from pipeline.spec import spec


@spec
class Accuracy(MeanOverExamples):
    """No settings."""

    direction = "max"
    takes = "classes"

    def mean(self, logits: np.ndarray, labels: np.ndarray) -> float:
        return classification.accuracy(logits, labels)
