"""One cycle: up to the full rate and down to almost nothing, both along half a cosine (Smith & Topin, 2018)."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from pipeline.contracts import Schedule
from pipeline.spec import spec


@spec
class OneCycle(Schedule):
    """`rising`: the share of the steps before the full rate. `first`, `final`: shares of the rate at the ends.

    A training of one or two steps has the full rate.
    """

    rising: Annotated[float, Field(gt=0, lt=1)] = 0.3
    first: Annotated[float, Field(ge=0, le=1)] = 0.04
    final: Annotated[float, Field(ge=0, le=1)] = 4e-6

    def factor(self, step: int, steps: int) -> float:
        if steps < 3:  # too few to rise and fall
            return 1.0
        peak = max(self.rising * (steps - 1), 1e-9)
        if step <= peak:
            return _between(self.first, 1.0, step / peak)
        return _between(1.0, self.final, (step - peak) / (steps - 1 - peak))


def _between(begin: float, end: float, progress: float) -> float:
    return end + (begin - end) * 0.5 * (1 + math.cos(math.pi * progress))
