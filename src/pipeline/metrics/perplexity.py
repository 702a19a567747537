"""The exponential of the mean cross-entropy (Jelinek et al., "Perplexity - a measure of the difficulty of speech
recognition tasks", 1977).
"""

from __future__ import annotations

import math
from typing import Any

from pipeline.metrics.cross_entropy import CrossEntropy
from pipeline.spec import spec

MOST_NATS = 709.0  # of which a float holds the exponential


@spec
class Perplexity(CrossEntropy):
    """No settings."""

    unit = ""

    def value(self, sums: Any) -> float:
        nats = super().value(sums)
        return math.exp(nats) if nats < MOST_NATS else math.inf
