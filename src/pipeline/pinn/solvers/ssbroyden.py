"""Self-scaled Broyden: a quasi-Newton method with a dense inverse Hessian, which scales itself at each step.

Source: Urbán, Stefanou & Pons, "Unveiling the optimization process of physics informed neural networks", J. Comput.
Phys. 523 (2025); Al-Baali & Khalfan, "A combined class of self-scaling and modified quasi-Newton methods" (2012).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipeline.machine.quiet import quiet_imports
from pipeline.pinn.solvers.own import Own
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.contracts.physics import Problem


@spec
class SsBroyden(Own):
    """Keeps parameters x parameters numbers: 58 MB for 2,700 parameters, and as many again during a step."""

    steps: Annotated[int, Field(gt=0)] = 5000

    hint: ClassVar[str] = "begin with solver=adam"
    smaller: ClassVar[str] = "use fewer model.units, or solver=lbfgs"

    def line_search(self, problem: Problem) -> bool:
        return True

    def numbers(self, parameters: int, residuals: int) -> int:
        """The inverse Hessian before the step and after it (measured on a CPU: 2.0 to 2.3 of them)."""
        return 2 * parameters**2

    def method(self) -> Any:
        with quiet_imports():
            from pipeline.pinn.solvers.ssbroyden_step import SsBroydenStep

        return SsBroydenStep()
