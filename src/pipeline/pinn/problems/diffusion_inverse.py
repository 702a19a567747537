"""An inverse problem: which C has u_t = C u_xx - exp(-t) (1 - pi^2) sin(pi x) the measured solution? C = 1.

Source: Lu, Meng, Mao & Karniadakis, "DeepXDE", SIAM Rev. 63 (2021); points, network and training are those of
examples/pinn_inverse/diffusion_1d_inverse.py of DeepXDE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts.physics import Problem, Recipe
from pipeline.pinn.domain import SpaceTime
from pipeline.pinn.problem import Column, Condition, Field, Math
from pipeline.spec import spec

LEAST = 4  # measurements


@spec
class DiffusionInverse(Problem):
    """u = exp(-t) sin(pi x) is known at t = 0, at the ends, and at `measurements` points at t = 1."""

    interior: PositiveInt = 40
    boundary: NonNegativeInt = 20
    initial: NonNegativeInt = 10
    measurements: PositiveInt = 10

    domain: ClassVar[SpaceTime] = SpaceTime(-1.0, 1.0, until=1.0)
    outputs: ClassVar[int] = 1
    equations: ClassVar[tuple[str, ...]] = ("u_t - C u_xx + exp(-t) (1 - pi^2) sin(pi x)",)
    unknowns: ClassVar[Mapping[str, float]] = {"C": 2.0}
    recipe: ClassVar[Recipe] = Recipe((32, 32, 32), steps=50_000, test_points=10_000, anchors=True)

    def __post_init__(self) -> None:
        if self.measurements < LEAST:
            raise ValueError(
                f"measurements={self.measurements}: with fewer than {LEAST} all lie where sin(pi x) is 0, and say "
                f"nothing of C; give {LEAST} or more"
            )

    def residuals(self, x: Sequence[Column], u: Field, math: Math, unknowns: Mapping[str, Column]) -> list[Column]:
        source = math.exp(-x[1]) * math.sin(np.pi * x[0]) * (1 - np.pi**2)
        return [u.first(1) - unknowns["C"] * u.second(0) + source]

    def conditions(self) -> tuple[Condition, ...]:
        measured = np.stack([np.linspace(-1, 1, self.measurements), np.ones(self.measurements)], axis=1)
        return (
            Condition("u at the ends", _exact, on=lambda points: abs(points[:, 0]) == 1),
            Condition("u at t = 0", _exact, on=lambda points: points[:, 1] == 0),
            Condition("measurements", _exact, points=measured),
        )

    def hard(self, x: Sequence[Column], u: Sequence[Column], math: Math) -> list[Column]:
        """The initial and boundary values, whatever the network says. The measurements are left to be fitted."""
        return [x[1] * (1 - x[0] ** 2) * u[0] + math.sin(x[0] * np.pi)]

    def reference(self, points: np.ndarray) -> np.ndarray:
        return _exact(points)[:, None]


def _exact(points: np.ndarray) -> np.ndarray:
    x, t = points.T
    return np.asarray(np.exp(-t) * np.sin(np.pi * x))
