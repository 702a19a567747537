"""The rate drops by a constant factor every so many steps (Krizhevsky et al., NeurIPS 2012, section 5)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from pipeline.contracts import Schedule
from pipeline.spec import spec


@spec
class Step(Schedule):
    """Multiplied by `gamma` after every `every` optimizer steps."""

    every: PositiveInt = 1000
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.5

    def factor(self, step: int, steps: int) -> float:
        return float(self.gamma ** (step // self.every))

    def longest(self) -> tuple[str, int]:
        return "every", self.every
