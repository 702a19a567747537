"""A system of two ordinary differential equations, y1' = y2, y2' = -y1 on [0, 10]: sine and cosine (row A18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts.physics import Problem, Recipe
from pipeline.pinn.domain import Interval
from pipeline.pinn.problem import Column, Condition, Field, Math
from pipeline.spec import spec


@spec
class Ode(Problem):
    """y1(0) = 0 and y2(0) = 1."""

    interior: PositiveInt = 35
    boundary: NonNegativeInt = 2

    domain: ClassVar[Interval] = Interval(0.0, 10.0, ("t",))
    outputs: ClassVar[int] = 2
    equations: ClassVar[tuple[str, ...]] = ("y1' - y2", "y2' + y1")
    unknowns: ClassVar[Mapping[str, float]] = {}
    recipe: ClassVar[Recipe] = Recipe((50, 50, 50), 20_000, 100)

    def residuals(self, x: Sequence[Column], u: Field, math: Math, unknowns: Mapping[str, Column]) -> list[Column]:
        return [u.first(0, output=0) - u.value(1), u.first(0, output=1) + u.value(0)]

    def conditions(self) -> tuple[Condition, ...]:
        def start(points: np.ndarray) -> np.ndarray:
            return np.asarray(points[:, 0] == 0)

        return (
            Condition("y1(0)", lambda points: np.zeros(len(points)), output=0, on=start),
            Condition("y2(0)", lambda points: np.ones(len(points)), output=1, on=start),
        )

    def hard(self, x: Sequence[Column], u: Sequence[Column], math: Math) -> list[Column]:
        """The initial values, whatever the network says."""
        return [x[0] * u[0], x[0] * u[1] + 1.0]

    def classical(self, points: np.ndarray) -> tuple[str, np.ndarray]:
        """Runge-Kutta of order 8 with its own step choice."""
        from scipy.integrate import solve_ivp

        low, high = self.domain.low, self.domain.high
        found = solve_ivp(
            lambda _, y: [y[1], -y[0]], (low, high), [0.0, 1.0], "DOP853", points[:, 0], rtol=1e-13, atol=1e-14
        )
        return "ode-runge-kutta", np.asarray(found.y.T)

    def reference(self, points: np.ndarray) -> np.ndarray:
        return np.concatenate([np.sin(points), np.cos(points)], axis=1)
