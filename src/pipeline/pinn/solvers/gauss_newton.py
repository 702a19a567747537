"""Gauss-Newton with Levenberg and Marquardt's damping: the residuals' linear model solved exactly at each step.

Source: Levenberg (1944); Marquardt (1963).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipeline.machine.quiet import quiet_imports
from pipeline.pinn.solvers.own import Own, Positive
from pipeline.spec import spec

MOST = 1e8  # damping; beyond, a step is too short to gain anything


@spec
class GaussNewton(Own):
    """`damping`: the first; it falls with every step that helps and grows with every trial that does not, within
    [`least_damping`, 1e8]. `factorization`: `cholesky` of the normal equations, in whichever of the spaces of
    parameters and residuals is the smaller, where a damping below the rounding error of their matrix (2e-16 of its
    trace) counts as that much; `svd` of the Jacobian itself, slower, with twice the digits and no such floor."""

    steps: Annotated[int, Field(gt=0)] = 500
    damping: Positive = 1e-2
    least_damping: Positive = 1e-14
    factorization: Literal["cholesky", "svd"] = "cholesky"
    every: Annotated[int, Field(gt=0)] = 10

    hint: ClassVar[str] = "try a larger solver.damping"
    smaller: ClassVar[str] = "use fewer model.units or a smaller dataset.interior"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.least_damping <= self.damping <= MOST:
            raise ValueError(
                f"damping={self.damping}: has to lie within solver.least_damping={self.least_damping} and {MOST:g}"
            )

    def numbers(self, parameters: int, residuals: int) -> int:
        """The Jacobian and its product, each twice; by SVD the Jacobian and its factors (measured on a CPU: 4.2)."""
        jacobian = parameters * residuals
        return 4 * jacobian if self.factorization == "svd" else 2 * jacobian + 2 * min(parameters, residuals) ** 2

    def method(self) -> Any:
        with quiet_imports():
            from pipeline.pinn.solvers.gauss_newton_step import GaussNewtonStep

        return GaussNewtonStep(self)
