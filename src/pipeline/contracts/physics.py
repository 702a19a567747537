"""The contracts of what solves an equation: a problem (of the group `dataset`), its network and its solver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pipeline.contracts import Backend, Part

if TYPE_CHECKING:
    import numpy as np

    from pipeline.machine.device import Place
    from pipeline.pinn.corner import Corner
    from pipeline.pinn.domain import Domain
    from pipeline.pinn.problem import Column, Condition, Field, Math
    from pipeline.pinn.solution import Solution
    from pipeline.runs.run import Run


@dataclass(frozen=True)
class Recipe:
    """How a problem's source solves it by DeepXDE: hidden layers, steps of Adam, points of the test loss (None: those
    of the training), steps of L-BFGS, how kernels are drawn, whether the conditions on the boundary are hard, and
    whether the equations are enforced at the measurements too (`anchors`).
    """

    units: tuple[int, ...] = (20, 20, 20)
    steps: int = 10_000
    test_points: int | None = 100
    lbfgs_steps: int = 0
    initializer: Literal["Glorot uniform", "Glorot normal"] = "Glorot uniform"
    hard: bool = False
    anchors: bool = False


class Problem(Part):
    """Equations to be solved by a network (of the group `dataset`). `math` has sin, cos, exp, tanh, sqrt, log, arctan2
    and pi for whatever the columns are.

    `interior`, `boundary`: how many points a training uses; where the domain is a SpaceTime, `initial` at time 0.
    `equations`: a name for each residual, none for a plain fit. `unknowns`: coefficients to be found, with their first
    guesses (an inverse problem has some). `recipe`: how its source solves it. `enriched`: names of the functions of
    `enrichment`. `corner`: the corner of a polygon at which the solution is not smooth.
    """

    domain: ClassVar[Domain]
    outputs: ClassVar[int]
    equations: ClassVar[tuple[str, ...]]
    unknowns: ClassVar[Mapping[str, float]]
    recipe: ClassVar[Recipe] = Recipe()
    enriched: ClassVar[tuple[str, ...]] = ()
    corner: ClassVar[Corner | None] = None

    if TYPE_CHECKING:

        @property
        def interior(self) -> int: ...

        @property
        def boundary(self) -> int: ...

        @property
        def initial(self) -> int: ...
    else:
        interior: int
        boundary: int
        initial = 0

    @abstractmethod
    def residuals(self, x: Sequence[Column], u: Field, math: Math, unknowns: Mapping[str, Column]) -> Sequence[Column]:
        """What has to vanish inside the domain, one column an equation; `x` one column a coordinate."""

    @abstractmethod
    def conditions(self) -> tuple[Condition, ...]:
        """What holds on the boundary or at data points."""

    @abstractmethod
    def reference(self, points: np.ndarray) -> np.ndarray:
        """The solution (N, outputs) at points (N, d), from a closed form or a computation of our own, in float64."""

    def hard(self, x: Sequence[Column], u: Sequence[Column], math: Math) -> Sequence[Column]:
        """The outputs, made to satisfy the conditions whatever the network says."""
        raise NotImplementedError

    def enrichment(self, x: Sequence[Column], math: Math) -> Sequence[Column]:
        """Functions that are added with trainable coefficients."""
        raise NotImplementedError

    def classical(self, points: np.ndarray) -> tuple[str, np.ndarray | float | Callable[[], float]]:
        """A classical solver's name, and its solution (N, outputs) at points (N, d), or a bound on its error.

        It is timed at about 16 points, so the work must not depend on N. Where the bound takes time by itself, a
        function computes it, which is not timed.
        """
        raise NotImplementedError


class Network(Part):
    """A network for problems (of the group `model`)."""

    if TYPE_CHECKING:

        @property
        def activation(self) -> str:
            """Of the hidden layers."""
    else:
        activation = "tanh"

    @abstractmethod
    def of(self, problem: Problem) -> Network:
        """The network as it will be: what it leaves open is the recipe's."""

    @abstractmethod
    def sizes(self, problem: Problem) -> list[int]:
        """From the coordinates over the hidden layers to the outputs."""

    @abstractmethod
    def initial(self, problem: Problem, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """Kernels and biases to start from, in float64."""


class Solver(Part):
    """What trains a network for a problem. `active`: it does. `backends`, `precisions`: those that it runs on and in.

    `instead`: for another backend, what to use. `graded`: residuals near a corner count less. `condition_weight`: how
    much a condition weighs beside an equation. `seeds`: how many are trained at once.
    """

    active: ClassVar[bool] = True
    backends: ClassVar[tuple[str, ...]]
    precisions: ClassVar[tuple[str, ...]]
    instead: ClassVar[Mapping[str, str]] = {}

    if TYPE_CHECKING:

        @property
        def graded(self) -> bool: ...

        @property
        def condition_weight(self) -> float: ...

        @property
        def seeds(self) -> int: ...
    else:
        graded, condition_weight, seeds = False, 1.0, 1

    @abstractmethod
    def check(self, problem: Problem, precision: str) -> None:
        """Refuse what the solver or the problem lacks, before anything is imported. Raises UserError and Impossible."""

    @abstractmethod
    def solve(
        self, problem: Problem, model: Network, *, precision: str, seed: int, place: Place, run: Run, backend: Backend
    ) -> Solution:
        """Train `model` on a device. Raises RunError for a loss that is not finite."""

    def packages_on(self, backend: str) -> tuple[str, ...]:
        """Distributions beside the solver's `packages` and the backend's that it computes with there."""
        return ()

    def check_backend(self, backend: str, problem: Problem) -> None:
        """Refuse a backend, by what only the solver can know of it. Raises Impossible."""

    def check_precision(self, precision: str, backend: str) -> None:
        """Refuse one of its precisions on a backend. Raises Impossible."""

    def hard_for(self, problem: Problem) -> bool:
        """Whether the conditions on the boundary are built into the outputs."""
        return False

    def line_search(self, problem: Problem) -> bool:
        """Whether it has one, to which rounding may look like the end."""
        return False
