"""The Allen-Cahn equation: u_t = 0.001 u_xx + 5 (u - u^3), which sharpens u to layers between -1 and 1.

Source: the equation of Raissi, Perdikaris & Karniadakis, J. Comput. Phys. 378 (2019), with the diffusion and the fixed
ends of Yu, Lu, Meng & Karniadakis, Comput. Methods Appl. Mech. Eng. 393 (2022); points, network, hard conditions and
training are those of examples/pinn_forward/Allen_Cahn.py of DeepXDE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts.physics import Problem, Recipe
from pipeline.pinn.domain import SpaceTime
from pipeline.pinn.problem import Column, Condition, Field, Math
from pipeline.pinn.references import allen_cahn
from pipeline.spec import spec


@spec
class AllenCahn(Problem):
    """u(x, 0) = x^2 cos(pi x) and u(-1, t) = u(1, t) = -1, to t = 1."""

    interior: PositiveInt = 8000
    boundary: NonNegativeInt = 400
    initial: NonNegativeInt = 800

    domain: ClassVar[SpaceTime] = SpaceTime(-1.0, 1.0, until=1.0)
    outputs: ClassVar[int] = 1
    equations: ClassVar[tuple[str, ...]] = ("u_t - 0.001 u_xx - 5 (u - u^3)",)
    unknowns: ClassVar[Mapping[str, float]] = {}
    recipe: ClassVar[Recipe] = Recipe(
        steps=40_000, test_points=None, lbfgs_steps=15_000, initializer="Glorot normal", hard=True
    )

    def residuals(self, x: Sequence[Column], u: Field, math: Math, unknowns: Mapping[str, Column]) -> list[Column]:
        value = u.value()
        return [u.first(1) - allen_cahn.DIFFUSION * u.second(0) - 5 * (value - value**3)]

    def conditions(self) -> tuple[Condition, ...]:
        def start(points: np.ndarray) -> np.ndarray:
            return np.asarray(points[:, 0] ** 2 * np.cos(np.pi * points[:, 0]))

        return (
            Condition("u at t = 0", start, on=lambda points: points[:, 1] == 0),
            Condition("u at the ends", lambda points: -np.ones(len(points)), on=lambda points: abs(points[:, 0]) == 1),
        )

    def hard(self, x: Sequence[Column], u: Sequence[Column], math: Math) -> list[Column]:
        """The initial and boundary values, whatever the network says."""
        return [x[1] * (1 - x[0] ** 2) * u[0] + x[0] ** 2 * math.cos(x[0] * np.pi)]

    def reference(self, points: np.ndarray) -> np.ndarray:
        return allen_cahn.solution(points)[:, None]
