"""Adam, whole blocks of steps in one compiled loop (Kingma & Ba, ICLR 2015, algorithm 1)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from pipeline.machine.quiet import quiet_imports
from pipeline.optimizers import Decay, Epsilon
from pipeline.pinn.solvers.own import Own
from pipeline.spec import spec


@spec
class Adam(Own):
    """`decay`: the share of the learning rate that is left after the last step; each step takes off the same share."""

    steps: Annotated[int, Field(gt=0)] = 10_000
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: Epsilon = 1e-8
    every: Annotated[int, Field(gt=0)] = 1000

    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp64")
    hint: ClassVar[str] = "try a smaller solver.learning_rate"

    def method(self) -> Any:
        with quiet_imports():
            from pipeline.pinn.solvers.adam_step import AdamStep

        return AdamStep(self)
