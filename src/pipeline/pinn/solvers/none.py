"""No solver: the experiment trains a classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NoReturn

from pipeline.contracts import Backend
from pipeline.contracts.physics import Network, Problem, Solver
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.machine.device import Place
    from pipeline.runs.run import Run


@spec
class Off(Solver):
    """Nothing is solved: a stage that solves refuses it (pipeline.pinn.check)."""

    active: ClassVar[bool] = False
    backends: ClassVar[tuple[str, ...]] = ()
    precisions: ClassVar[tuple[str, ...]] = ()

    def check(self, problem: Problem, precision: str) -> None:
        """Nothing to refuse."""

    def solve(
        self, problem: Problem, model: Network, *, precision: str, seed: int, place: Place, run: Run, backend: Backend
    ) -> NoReturn:
        raise AssertionError("solver=none solves nothing")
