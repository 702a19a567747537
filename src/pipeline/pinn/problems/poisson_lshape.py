"""Poisson's equation on the L-shape: -(u_xx + u_yy) = 1, u = 0 on the boundary (row A19)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts.physics import Problem, Recipe
from pipeline.pinn.corner import Corner
from pipeline.pinn.domain import Polygon
from pipeline.pinn.problem import Column, Condition, Field, Math
from pipeline.pinn.references import lshape
from pipeline.spec import spec


@spec
class PoissonLShape(Problem):
    """The square [-1, 1]^2 without its upper right quarter; the corner at the origin turns inwards."""

    interior: PositiveInt = 1200
    boundary: NonNegativeInt = 120

    domain: ClassVar[Polygon] = Polygon(lshape.VERTICES)
    outputs: ClassVar[int] = 1
    equations: ClassVar[tuple[str, ...]] = ("laplacian + 1",)
    unknowns: ClassVar[Mapping[str, float]] = {}
    recipe: ClassVar[Recipe] = Recipe((50, 50, 50, 50), 50_000, 1500, 15_000)
    enriched: ClassVar[tuple[str, ...]] = ("r^(2/3)", "r^2 log r")
    corner: ClassVar[Corner] = Corner(domain, at=(0.0, 0.0), order=2 - 2 / 3)

    def residuals(self, x: Sequence[Column], u: Field, math: Math, unknowns: Mapping[str, Column]) -> list[Column]:
        return [u.second(0, 1) + 1.0]

    def conditions(self) -> tuple[Condition, ...]:
        def everywhere(points: np.ndarray) -> np.ndarray:
            return np.ones(len(points), bool)

        return (Condition("u on the boundary", lambda points: np.zeros(len(points)), on=everywhere),)

    def enrichment(self, x: Sequence[Column], math: Math) -> list[Column]:
        """What u has at its corners and no network can follow, both harmonic: the residual does not change.

        The coefficient of the first is to be found (0.4019310310137); that of the second is 1.
        """
        return [lshape.corner_term(x[0], x[1], math), lshape.log_terms(x[0], x[1], math)]

    def classical(self, points: np.ndarray) -> tuple[str, Callable[[], float]]:
        """The method of particular solutions. It is the reference too, so its error is the bound."""
        lshape.computed_anew()
        values = lshape.solution(points)
        return "poisson-particular-solutions", lambda: lshape.boundary_error() / float(np.sqrt(np.mean(values**2)))

    def reference(self, points: np.ndarray) -> np.ndarray:
        return lshape.solution(points)[:, None]
