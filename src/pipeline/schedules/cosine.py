"""Half a cosine from the full rate to the final one (Loshchilov & Hutter, ICLR 2017, eq. 5, without restarts)."""

from __future__ import annotations

import math

from pipeline.schedules.warm_up import WarmUp
from pipeline.spec import spec


@spec
class Cosine(WarmUp):
    """After the warm-up; see WarmUp."""

    def decay(self, progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))
