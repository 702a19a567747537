"""Recall, the share of a class that is predicted as it, as the mean over the classes."""

from __future__ import annotations

import numpy as np

from pipeline.metrics.per_class import Counts, MeanOverClasses
from pipeline.spec import spec


@spec
class MacroRecall(MeanOverClasses):
    """No settings."""

    def of_classes(self, counts: Counts) -> np.ndarray:
        return counts.recall
