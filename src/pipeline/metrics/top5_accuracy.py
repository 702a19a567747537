"""The share of examples whose true class is among the five highest logits."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline.errors import UserError
from pipeline.metrics import classification
from pipeline.metrics.averaged import MeanOverExamples
from pipeline.spec import spec

HIGHEST = 5


@spec
class Top5Accuracy(MeanOverExamples):
    """No settings."""

    direction = "max"
    takes = "classes"
    asks_the_data: ClassVar[bool] = True

    def check(self, outputs: tuple[int, ...]) -> None:
        """Refuse so few classes that each is among the five."""
        classes = outputs[-1]
        if classes <= HIGHEST:
            raise UserError(
                f"training.metrics=top5_accuracy: the data have {classes} classes, of which the true one is always "
                f"among the {HIGHEST} highest; leave it out"
            )

    def each(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return classification.among_five(logits, labels)
