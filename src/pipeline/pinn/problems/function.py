"""A function fitted to 16 of its values: x sin(5x) on [-1, 1] (row A17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.polynomial import Chebyshev
from pydantic import PositiveInt

from pipeline.contracts.physics import Problem, Recipe
from pipeline.pinn.domain import Interval
from pipeline.pinn.problem import Column, Condition, Field, Math
from pipeline.spec import spec


@spec
class Function(Problem):
    """`interior` equispaced points, both ends among them, at which the function is known."""

    interior: PositiveInt = 16

    boundary: ClassVar[int] = 0
    domain: ClassVar[Interval] = Interval(-1.0, 1.0)
    outputs: ClassVar[int] = 1
    equations: ClassVar[tuple[str, ...]] = ()
    unknowns: ClassVar[Mapping[str, float]] = {}
    recipe: ClassVar[Recipe] = Recipe((20, 20, 20), 10_000, 100)

    def residuals(self, x: Sequence[Column], u: Field, math: Math, unknowns: Mapping[str, Column]) -> list[Column]:
        return []

    def conditions(self) -> tuple[Condition, ...]:
        return (Condition("values", _values, points=self.domain.grid(self.interior)),)

    def classical(self, points: np.ndarray) -> tuple[str, np.ndarray]:
        """The polynomial through the values."""
        x = self.domain.grid(self.interior)
        fitted = Chebyshev.fit(x[:, 0], _values(x), len(x) - 1)
        return "function-polynomial", np.asarray(fitted(points[:, :1]))

    def reference(self, points: np.ndarray) -> np.ndarray:
        return _values(points)[:, None]


def _values(points: np.ndarray) -> np.ndarray:
    x = points[:, 0]
    return np.asarray(x * np.sin(5 * x))
