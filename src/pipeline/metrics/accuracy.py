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

    def each(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return classification.correct(logits, labels)
