"""Burgers' equation: u_t + u u_x = (0.01 / pi) u_xx, a wave that steepens to a layer 0.01 wide at x = 0.

Source: Raissi, Perdikaris & Karniadakis, J. Comput. Phys. 378 (2019); points, network and training are those of
examples/pinn_forward/Burgers.py of DeepXDE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts.physics import Problem, Recipe
from pipeline.pinn.domain import SpaceTime
from pipeline.pinn.problem import Column, Condition, Field, Math
from pipeline.pinn.references import burgers
from pipeline.spec import spec


@spec
class Burgers(Problem):
    """u(x, 0) = -sin(pi x) and u(-1, t) = u(1, t) = 0, to t = 0.99, where the source's data ends."""

    interior: PositiveInt = 2540
    boundary: NonNegativeInt = 80
    initial: NonNegativeInt = 160

    domain: ClassVar[SpaceTime] = SpaceTime(-1.0, 1.0, until=0.99)
    outputs: ClassVar[int] = 1
    equations: ClassVar[tuple[str, ...]] = ("u_t + u u_x - (0.01/pi) u_xx",)
    unknowns: ClassVar[Mapping[str, float]] = {}
    recipe: ClassVar[Recipe] = Recipe(steps=15_000, test_points=None, lbfgs_steps=15_000, initializer="Glorot normal")

    def residuals(self, x: Sequence[Column], u: Field, math: Math, unknowns: Mapping[str, Column]) -> list[Column]:
        return [u.first(1) + u.value() * u.first(0) - burgers.VISCOSITY * u.second(0)]

    def conditions(self) -> tuple[Condition, ...]:
        return (
            Condition("u at the ends", lambda points: np.zeros(len(points)), on=lambda points: abs(points[:, 0]) == 1),
            Condition("u at t = 0", lambda points: -np.sin(np.pi * points[:, 0]), on=lambda points: points[:, 1] == 0),
        )

    def hard(self, x: Sequence[Column], u: Sequence[Column], math: Math) -> list[Column]:
        """The initial and boundary values, whatever the network says."""
        return [x[1] * (1 - x[0] ** 2) * u[0] - math.sin(x[0] * np.pi)]

    def reference(self, points: np.ndarray) -> np.ndarray:
        return burgers.solution(points)[:, None]
