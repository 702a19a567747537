"""Solvers: one file each, a spec with `solve`, which trains a network for a problem and returns a Solution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from pipeline.machine.device import Place
    from pipeline.pinn.problem import Problem
    from pipeline.pinn.solution import Solution
    from pipeline.runs.run import Run


class Solver(Protocol):
    """What a solver's spec offers. `backends`, `precisions`: those that it can run on and in, by name.

    Optional: `hard_for(problem)`, whether the conditions on the boundary are built into the outputs;
    `line_search(problem)`, whether rounding may look to it like the end; `packages`, whose versions the receipt tells;
    `check_backend(name, problem)`, what only it can know of a backend.
    """

    backends: ClassVar[tuple[str, ...]]
    precisions: ClassVar[tuple[str, ...]]

    def check(self, problem: Problem, precision: str) -> None:
        """Refuse what the solver or the problem lacks, before anything is imported. Raises UserError and Impossible."""
        ...

    def solve(
        self, problem: Problem, model: Any, *, precision: str, seed: int, place: Place, run: Run, backend: Any
    ) -> Solution:
        """Train `model` (pipeline.models.fnn) on a device. Raises RunError for a loss that is not finite."""
        ...
