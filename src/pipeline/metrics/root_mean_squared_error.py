"""The root of the mean squared distance of outputs from targets, over all their numbers."""

from __future__ import annotations

import math
from typing import Any

from pipeline.metrics.mean_squared_error import MeanSquaredError
from pipeline.spec import spec


@spec
class RootMeanSquaredError(MeanSquaredError):
    """No settings."""

    def value(self, sums: Any) -> float:
        return math.sqrt(super().value(sums))
