"""DeepXDE with Adam, then with L-BFGS."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from pipeline.contracts.physics import Problem
from pipeline.pinn.solvers.deepxde_adam import DeepxdeAdam
from pipeline.spec import spec


@spec
class DeepxdeAdamLbfgs(DeepxdeAdam):
    """As DeepxdeAdam; then at most `lbfgs_steps` of L-BFGS."""

    lbfgs_steps: PositiveInt = 15_000

    backends: ClassVar[tuple[str, ...]] = ("torch", "tensorflow")
    instead: ClassVar[dict[str, str]] = {"jax": "DeepXDE has no L-BFGS on JAX"}

    def lbfgs_steps_for(self, problem: Problem) -> int:
        return self.lbfgs_steps
