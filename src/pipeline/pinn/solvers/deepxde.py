"""DeepXDE as the problem's source has it: Adam, and L-BFGS after it where the source goes on with it."""

from __future__ import annotations

from pipeline.contracts.physics import Problem
from pipeline.pinn.solvers.deepxde_adam import DeepxdeAdam
from pipeline.spec import spec


@spec
class Deepxde(DeepxdeAdam):
    """As DeepxdeAdam; then as many steps of L-BFGS, at most, as the problem's recipe has."""

    def lbfgs_steps_for(self, problem: Problem) -> int:
        return problem.recipe.lbfgs_steps
