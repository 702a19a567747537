"""The mean cross-entropy in bits."""

from __future__ import annotations

import math
from typing import Any

from pipeline.metrics.cross_entropy import CrossEntropy
from pipeline.spec import spec


@spec
class BitsPerToken(CrossEntropy):
    """No settings."""

    unit = "bits"

    def value(self, sums: Any) -> float:
        return super().value(sums) / math.log(2)
