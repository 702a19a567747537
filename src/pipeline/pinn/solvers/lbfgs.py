"""L-BFGS: a quasi-Newton method that remembers the last steps (Nocedal & Wright, "Numerical Optimization", 7.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipeline.machine.quiet import quiet_imports
from pipeline.pinn.solvers.own import Own
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.contracts.physics import Problem


@spec
class Lbfgs(Own):
    """`remembered`: how many steps."""

    steps: Annotated[int, Field(gt=0)] = 5000
    remembered: Annotated[int, Field(gt=0, le=1000)] = 50

    precisions: ClassVar[tuple[str, ...]] = ("fp32", "fp64")
    hint: ClassVar[str] = "begin with solver=adam"
    smaller: ClassVar[str] = "use fewer model.units or a smaller solver.remembered"

    def line_search(self, problem: Problem) -> bool:
        return True

    def numbers(self, parameters: int, residuals: int) -> int:
        """The steps and the changes of the gradient, before the step and after it (measured on a CPU: 2.1 times)."""
        return 4 * self.remembered * parameters

    def method(self) -> Any:
        with quiet_imports():
            from pipeline.pinn.solvers.lbfgs_step import LbfgsStep

        return LbfgsStep(self.remembered)
