"""Problems of a user's own: two that can be solved, as a file each would be, and wrong ones for test_pinn.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts.physics import Problem, Recipe
from pipeline.pinn.corner import Corner
from pipeline.pinn.domain import Interval, rectangle
from pipeline.pinn.problem import Column, Condition, Field
from pipeline.spec import spec


@spec
class Decay(Problem):
    """u' = -k u, of which 20 measurements are known and k = 2 is to be found."""

    interior: PositiveInt = 20
    boundary: NonNegativeInt = 0

    domain: ClassVar[Interval] = Interval(0.0, 1.0, ("t",))
    outputs: ClassVar[int] = 1
    equations: ClassVar[tuple[str, ...]] = ("u' + k u",)
    unknowns: ClassVar[Mapping[str, float]] = {"k": 1.0}
    recipe: ClassVar[Recipe] = Recipe((10,), 3000)

    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return [u.first(0) + unknowns["k"] * u.value()]

    def conditions(self) -> tuple[Condition, ...]:
        points = self.domain.grid(20)
        return (Condition("measured", lambda points: np.exp(-2 * points[:, 0]), points=points),)

    def reference(self, points: np.ndarray) -> np.ndarray:
        return np.exp(-2 * points)


@spec
class Heat(Problem):
    """u_t = u_xx on a rectangle, u = exp(-t) sin(x): every function that `math` has is used in one residual."""

    interior: PositiveInt = 40
    boundary: NonNegativeInt = 40

    domain: ClassVar[Any] = rectangle((0.0, np.pi), (0.0, 1.0), ("x", "t"))
    outputs: ClassVar[int] = 1
    equations: ClassVar[tuple[str, ...]] = ("u_t - u_xx",)
    unknowns: ClassVar[Mapping[str, float]] = {}
    recipe: ClassVar[Recipe] = Recipe((10, 10), 500)

    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        angle = math.arctan2(math.sin(x[1]), math.cos(x[1])) - x[1]  # 0, as are the next two
        power = math.log(math.exp(x[0]))
        power -= x[0]
        root = math.sqrt(math.tanh(x[1]) ** 2) - math.tanh(x[1])
        return [u.first(1) - u.second(0) + angle + power + root]

    def conditions(self) -> tuple[Condition, ...]:
        def start(points: np.ndarray) -> np.ndarray:
            return np.asarray(points[:, 1] == 0)

        def sides(points: np.ndarray) -> np.ndarray:
            return np.isclose(points[:, 0], 0) | np.isclose(points[:, 0], np.pi)

        return (
            Condition("start", lambda points: np.sin(points[:, 0]), on=start),
            Condition("sides", lambda points: np.zeros(len(points)), on=sides),
        )

    def reference(self, points: np.ndarray) -> np.ndarray:
        return (np.exp(-points[:, 1]) * np.sin(points[:, 0]))[:, None]


@spec
class TooManyResiduals(Heat):
    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return [u.first(1), u.value()]


@spec
class NoSuchCoordinate(Heat):
    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return [u.first(2)]


@spec
class FlatResidual(Heat):
    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return [(u.first(1) - u.second(0))[:, 0]]


@spec
class NoSuchFunction(Heat):
    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return [u.first(1) - math.cosh(x[0])]


@spec
class NoUnknowns(Problem):
    """Neither has it a boundary."""

    interior: PositiveInt = 40

    domain: ClassVar[Interval] = Interval(0.0, 1.0)
    outputs: ClassVar[int] = 1
    equations: ClassVar[tuple[str, ...]] = ()

    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return []

    def conditions(self) -> tuple[Condition, ...]:
        return ()

    def reference(self, points: np.ndarray) -> np.ndarray:
        return points


class NoBoundary(Interval):
    def on_boundary(self, n: int, generator: np.random.Generator) -> np.ndarray:
        raise NotImplementedError("no boundary")


class ContainsNothing(Interval):
    def contains(self, points: np.ndarray) -> np.ndarray:
        return np.asarray(points[:, 1] > 0)


@spec
class WrongBoundary(Decay):
    domain: ClassVar[Interval] = NoBoundary(0.0, 1.0, ("t",))


@spec
class WrongDomain(Decay):
    domain: ClassVar[Interval] = ContainsNothing(0.0, 1.0, ("t",))


@spec
class WrongConditions(Decay):
    def conditions(self) -> tuple[Condition, ...]:
        return (Condition("measured", np.sin, points=np.load("missing.npy")),)


@spec
class FewHard(Decay):
    outputs: ClassVar[int] = 2

    def hard(self, x: Sequence[Column], u: Sequence[Column], math: Any) -> list[Column]:
        return [1.0 + x[0] * u[0]]


@spec
class WrongHard(Decay):
    def hard(self, x: Sequence[Column], u: Sequence[Column], math: Any) -> list[Column]:
        return [math.cosh(x[0]) * u[0]]


@spec
class UnnamedEnrichment(Decay):
    enriched: ClassVar[tuple[str, ...]] = ("t", "t^2")

    def enrichment(self, x: Sequence[Column], math: Any) -> list[Column]:
        return [x[0]]


@spec
class NoCorner(Heat):
    corner: ClassVar[Any] = (0.0, 0.0)


@spec
class ForeignCorner(Heat):
    corner: ClassVar[Corner] = Corner(rectangle((0.0, 1.0), (0.0, 1.0)), at=(1.0, 0.0), order=0.5)


@spec
class InfiniteEnrichment(Decay):
    enriched: ClassVar[tuple[str, ...]] = ("log of a negative",)

    def enrichment(self, x: Sequence[Column], math: Any) -> list[Column]:
        return [math.log(x[0] - 2.0)]


@spec
class PointOutside(Decay):
    def conditions(self) -> tuple[Condition, ...]:
        return (Condition("measured", lambda points: points[:, 0], points=np.array([[0.5], [1.5]])),)


@spec
class NoPoints(Decay):
    def conditions(self) -> tuple[Condition, ...]:
        return (Condition("measured", lambda points: points[:, 0], points=np.empty((0, 1))),)


@spec
class NoSuchOutput(Decay):
    def conditions(self) -> tuple[Condition, ...]:
        return (Condition("measured", lambda points: points[:, 0], output=1, points=self.domain.grid(3)),)


@spec
class NoConditions(Decay):
    def conditions(self) -> tuple[Condition, ...]:
        return ()


@spec
class NoReturn(Decay):
    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> Any:
        u.first(0)


@spec
class NumPysTanh(Decay):
    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return [u.first(0) + np.tanh(u.value())]


@spec
class NumPysSum(Decay):
    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return [np.sum(u.first(0) * u.value(), axis=1, keepdims=True)]


@spec
class Started(Decay):
    boundary: NonNegativeInt = 2
    unknowns: ClassVar[Mapping[str, float]] = {}

    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return [u.first(0) + 2 * u.value()]

    def conditions(self) -> tuple[Condition, ...]:
        return (Condition("y(0)", lambda points: np.ones(len(points)), on=lambda points: points[:, 0] == 0),)


@spec
class HardIsNone(Started):
    def hard(self, x: Sequence[Column], u: Sequence[Column], math: Any) -> list[Column]:
        return [x[0] * u[0]]


@spec
class ReferenceIsOff(Started):
    def reference(self, points: np.ndarray) -> np.ndarray:
        return 2 * np.exp(-2 * points)


@spec
class SmallReferenceIsOff(Started):
    def conditions(self) -> tuple[Condition, ...]:
        return (Condition("y(0)", lambda points: np.full(len(points), 1e-3), on=lambda points: points[:, 0] == 0),)

    def reference(self, points: np.ndarray) -> np.ndarray:
        return 1.1e-3 * np.exp(-2 * points)


@spec
class TakenName(Decay):
    def conditions(self) -> tuple[Condition, ...]:
        return (Condition("inside", lambda points: points[:, 0], points=self.domain.grid(3)),)


@spec
class NoInside(Decay):
    interior: int = 0


@spec
class Scattered(Decay):
    """A plain fit to values at its own points, not equispaced ones."""

    equations: ClassVar[tuple[str, ...]] = ()
    unknowns: ClassVar[Mapping[str, float]] = {}

    def residuals(self, x: Sequence[Column], u: Field, math: Any, unknowns: Mapping[str, Any]) -> list[Column]:
        return []

    def conditions(self) -> tuple[Condition, ...]:
        points = self.domain.grid(20) ** 2
        return (Condition("measured", lambda points: np.exp(-2 * points[:, 0]), points=points),)


@spec
class NotFinite(Decay):
    def reference(self, points: np.ndarray) -> np.ndarray:
        return points / 0.0


@spec
class Vanishing(Decay):
    """The reference is 0."""

    def reference(self, points: np.ndarray) -> np.ndarray:
        return 0 * points


@spec
class WrongReference(Decay):
    def reference(self, points: np.ndarray) -> np.ndarray:
        return np.exp(-2 * points[:, 0])
