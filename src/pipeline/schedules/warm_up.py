"""What the schedules that begin small share: the first steps rise linearly to the full rate."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from pydantic import Field, NonNegativeInt

from pipeline.contracts import Schedule
from pipeline.spec import spec

Share = Annotated[float, Field(ge=0, le=1)]


@spec
class WarmUp(Schedule):
    """`warm_up`: optimizer steps until the full rate; the n-th of them has n/warm_up of it. `final`: the share of the
    rate that is left at the last step.
    """

    warm_up: NonNegativeInt = 0
    final: Share = 0.0

    def factor(self, step: int, steps: int) -> float:
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        rest = steps - 1 - self.warm_up
        # A training of one step has the full rate, and a last step right behind the warm-up the final one.
        progress = (step - self.warm_up) / rest if rest > 0 else float(self.warm_up > 0)
        return self.final + (1 - self.final) * self.decay(progress)

    def longest(self) -> tuple[str, int]:
        return "warm_up", self.warm_up

    @abstractmethod
    def decay(self, progress: float) -> float:
        """From 1 to 0 while `progress` goes from 0, at the end of the warm-up, to 1, at the last step."""
