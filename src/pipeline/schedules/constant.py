"""The optimizer's learning rate from the first step to the last."""

from __future__ import annotations

from typing import ClassVar

from pipeline.contracts import Schedule
from pipeline.spec import spec


@spec
class Constant(Schedule):
    """Nothing is scheduled, and the compiled steps take no rate."""

    constant: ClassVar[bool] = True

    def factor(self, step: int, steps: int) -> float:
        return 1.0
