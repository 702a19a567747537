"""A corner at which a solution is not smooth: points nearer and nearer to it, and how heavy a residual is there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log, pi

import numpy as np

from pipeline.pinn.domain import Polygon

SHARE = 0.5  # of the points that are drawn near the corner, the others uniformly
NEAREST = 1e-3  # of them to the corner, as a part of the reach


@dataclass(frozen=True)
class Corner:
    """The vertex `at` of a polygon, near which the solution's second derivatives grow like distance^-order."""

    domain: Polygon
    at: tuple[float, float]
    order: float

    def __post_init__(self) -> None:
        if self.at not in self.domain.vertices:
            raise ValueError(f"Corner: at={self.at} is not a vertex of {self.domain.vertices}")
        x, y = np.array(self.domain.vertices).T
        if x @ np.roll(y, -1) < y @ np.roll(x, -1):
            raise ValueError(f"Corner: the vertices {self.domain.vertices} are clockwise; turn them round")
        if not 0 < self.order < np.inf:
            raise ValueError(f"Corner: order={self.order} has to be positive and finite")

    @cached_property
    def sides(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The polygon's sides, start and end, counted from the corner: the first begins there, the last ends there."""
        first = self.domain.vertices.index(self.at)
        corners = np.roll(np.array(self.domain.vertices) - self.at, -first, axis=0)
        return list(zip(corners, np.roll(corners, -1, axis=0), strict=True))

    @cached_property
    def angle(self) -> float:
        """How far the corner opens inside the polygon, whose vertices are counter-clockwise."""
        (_, after), (before, _) = self.sides[0], self.sides[-1]
        return float((np.arctan2(before[1], before[0]) - np.arctan2(after[1], after[0])) % (2 * pi))

    @cached_property
    def reach(self) -> float:
        """Up to this distance nothing of the boundary lies but the corner's two sides."""
        ends = [np.linalg.norm(self.sides[0][1]), np.linalg.norm(self.sides[-1][0])]
        for a, b in self.sides[1:-1]:
            along = np.clip(-a @ (b - a) / ((b - a) @ (b - a)), 0, 1)
            ends.append(np.linalg.norm(a + along * (b - a)))
        return float(min(ends))

    def draw(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Points (n, 2) inside the polygon, as many of the near ones between r and 2r whatever r is."""
        near, found = int(SHARE * n), np.empty((0, 2))
        while len(found) < near:
            distance = self.reach * NEAREST ** generator.uniform(0, 1, 2 * near)
            turn = generator.uniform(0, 2 * pi, 2 * near)
            points = self.at + distance[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
            found = np.concatenate([found, points[self.domain.contains(points)]])
        return np.concatenate([found[:near], self.domain.inside(n - near, generator)])

    def weight(self, points: np.ndarray) -> np.ndarray:
        """(N,): with it the mean square over drawn points is that of (distance / reach)^order times the residual, taken
        over the domain.

        A smooth function that follows r^a down to a distance e leaves a residual of e^(a-2) within it, and its plain
        mean square grows as e gets less where a < 1: without the weight it does not pay to come nearer.
        """
        square = np.sum((points - self.at) ** 2, axis=1)
        reached = (square < self.reach**2) & (square > (NEAREST * self.reach) ** 2)
        near = np.divide(1.0, square, out=np.zeros_like(square), where=reached) / (self.angle * log(1 / NEAREST))
        density = SHARE * near + (1 - SHARE) / self.domain.area()
        return np.asarray(np.sqrt((square / self.reach**2) ** self.order / (density * self.domain.area())))
