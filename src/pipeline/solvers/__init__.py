"""Solvers: one file each, a spec with `solve`, which trains a network for a problem and returns a Solution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from pipeline.device import Place
    from pipeline.pinn.problem import Problem
    from pipeline.pinn.solution import Solution
    from pipeline.run import Run


class Solver(Protocol):
    """What a solver's spec offers. `backends`: those that it can run on."""

    backends: ClassVar[tuple[str, ...]]

    def solve(self, problem: Problem, model: Any, *, precision: str, seed: int, place: Place, run: Run) -> Solution:
        """Train `model` (its `units` are the hidden layers) in a precision, by name, on a device."""
        ...
