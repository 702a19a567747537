"""The share of examples whose true class is among the five highest logits."""

from __future__ import annotations

import numpy as np

from pipeline.metrics import classification
from pipeline.metrics.averaged import MeanOverExamples
from pipeline.spec import spec


@spec
class Top5Accuracy(MeanOverExamples):
    """No settings."""

    direction = "max"
    takes = "classes"

    def mean(self, logits: np.ndarray, labels: np.ndarray) -> float:
        return classification.top5_accuracy(logits, labels)
