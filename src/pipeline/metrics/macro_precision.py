"""Precision, the share that is right of what is predicted as a class, as the mean over the classes."""

from __future__ import annotations

import numpy as np

from pipeline.metrics.per_class import Counts, MeanOverClasses
from pipeline.spec import spec


@spec
class MacroPrecision(MeanOverClasses):
    """No settings."""

    def of_classes(self, counts: Counts) -> np.ndarray:
        return counts.precision
