"""What our own solvers have in common: their settings, and what they refuse before JAX is imported."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from pipeline.contracts import Backend, offers
from pipeline.contracts.physics import Network, Problem, Solver
from pipeline.errors import Impossible, UserError
from pipeline.machine.quiet import quiet_imports
from pipeline.spec import choice, spec

if TYPE_CHECKING:
    from pipeline.contracts.physics import Problem
    from pipeline.machine.device import Place
    from pipeline.pinn.solution import Solution
    from pipeline.pinn.solvers.method import Method
    from pipeline.runs.run import Run

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@spec
class Own(Solver):
    """`steps`: at most; a solver that can go no further stops before.

    `conditions`: soft ones are terms of the loss, `condition_weight` times as heavy as an equation; hard ones are built
    into the outputs (`problem.hard`). `enrichment`: with the problem's singular functions. `scale`: coordinates are
    mapped to [-scale, scale] first (null: they stay as they are). `start`: `glorot` as everywhere; `features` spreads
    the neurons of the first layer over the domain and fits the last layer by least squares before the first step, which
    nearly solves a linear problem (Huang, Zhu & Siew, "Extreme learning machine", Neurocomputing 70, 2006). `resample`:
    new points inside the domain every so many steps (0: never); `adaptive`: drawn where the residual is large (Wu et
    al., CMAME 403, 2023). `graded`: half of the points inside lie nearer and nearer to the problem's corner, and a
    residual counts as much less there as the solution's second derivatives are larger. `seeds`: so many are trained at
    once, from `seed` upwards. `every`: steps between two rows of the history.
    """

    steps: PositiveInt = 1000
    conditions: Literal["soft", "hard"] = "soft"
    condition_weight: Positive = 1.0
    enrichment: bool = False
    scale: Positive | None = None
    start: Literal["glorot", "features"] = "glorot"
    resample: NonNegativeInt = 0
    adaptive: bool = False
    graded: bool = False
    seeds: PositiveInt = 1
    every: PositiveInt = 100

    backends: ClassVar[tuple[str, ...]] = ("jax",)
    precisions: ClassVar[tuple[str, ...]] = ("fp64",)
    hint: ClassVar[str]  # what to try where the loss leaves the finite numbers
    smaller: ClassVar[str] = "use fewer model.units"  # what to try where memory does not suffice

    def __post_init__(self) -> None:
        if self.start == "features" and self.scale is None:
            raise ValueError(
                "start=features: spreads the neurons over coordinates in [-scale, scale], and solver.scale is null; "
                "set it too, such as solver.scale=1.0"
            )
        if self.adaptive and not self.resample:
            raise ValueError("adaptive=true: points are redrawn every solver.resample steps, which is 0; set it too")
        if self.resample >= self.steps:
            raise ValueError(
                f"resample={self.resample}: no step of solver.steps={self.steps} is left for new points; give less"
            )

    def hard_for(self, problem: Problem) -> bool:
        """Whether the conditions on the boundary are built into the outputs."""
        return self.conditions == "hard"

    def line_search(self, problem: Problem) -> bool:
        """Whether it has one, to which rounding may look like the end."""
        return False

    def numbers(self, parameters: int, residuals: int) -> int:
        """How many numbers a step keeps at once, at the least, besides some for each parameter and each residual."""
        return 0

    @abstractmethod
    def method(self) -> Method:
        """The update, compiled later. Imports JAX."""

    def check(self, problem: Problem, precision: str) -> None:
        """Refuse what this solver or this problem lacks. Raises UserError or Impossible."""
        if precision not in self.precisions:
            raise Impossible(
                f"precision={precision} with solver={choice(self)}: it computes in {' or '.join(self.precisions)}; "
                f"use precision={self.precisions[-1]}"
            )
        called = type(problem).__name__
        if self.conditions == "hard" and not offers(problem, Problem.hard):
            raise UserError(f"solver.conditions=hard: {called} has no hard conditions; use solver.conditions=soft")
        terms = self.conditions == "soft" or any(one.points is not None for one in problem.conditions())
        if self.condition_weight != 1 and not terms:
            raise UserError(
                f"solver.condition_weight={self.condition_weight} with solver.conditions=hard: no condition of "
                f"{called} is left as a term of the loss; leave it out"
            )
        if self.enrichment and not offers(problem, Problem.enrichment):
            raise UserError(f"solver.enrichment=true: {called} has none; use solver.enrichment=false")
        if self.graded and problem.corner is None:
            raise UserError(f"solver.graded=true: {called} names no corner; use solver.graded=false")
        if self.graded and not problem.equations:
            raise UserError(f"solver.graded=true: {called} has no equation to draw points for; use solver.graded=false")
        if self.resample and not problem.equations:
            raise UserError(f"solver.resample={self.resample}: {called} has no equation to draw new points for; use 0")

    def solve(
        self,
        problem: Problem,
        model: Network,
        *,
        precision: str,
        seed: int,
        place: Place,
        run: Run,
        backend: Backend | None = None,
    ) -> Solution:
        """Train the network `model` for `problem`. Raises RunError for a loss that is not finite."""
        self.check(problem, precision)
        for note in unused_points(problem) if self.conditions == "hard" else ():
            run.note(note)
        with quiet_imports():
            from pipeline.pinn.solvers.training import train

        return train(self, problem, model, precision=precision, seed=seed, place=place, run=run)


def unused_points(problem: Problem) -> list[str]:
    """Notes on numbers of points that have no effect, since all conditions are built into the outputs; not on the
    default ones."""
    return [
        f"dataset.{key}={value} has no effect: with solver.conditions=hard the conditions of {type(problem).__name__} "
        "are built into the outputs and need no points"
        for key in ("boundary", "initial")
        if (value := getattr(problem, key)) not in (0, getattr(type(problem), key, value))
    ]
