"""Domains: where a problem lives. Points inside and on the boundary, drawn by a generator, and a grid to judge on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Domain(Protocol):
    """Points are (N, d), float64."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the coordinates."""
        ...

    def inside(self, n: int, generator: np.random.Generator) -> np.ndarray: ...

    def on_boundary(self, n: int, generator: np.random.Generator) -> np.ndarray: ...

    def grid(self, n: int) -> np.ndarray:
        """About `n` regular points of the closed domain."""
        ...

    def contains(self, points: np.ndarray) -> np.ndarray:
        """(N,) bool; the boundary belongs to the domain."""
        ...

    def ends(self, points: np.ndarray) -> np.ndarray:
        """(N,) bool: which of the points every set of points inside must have."""
        ...


@dataclass(frozen=True)
class Interval:
    """[low, high]; its boundary is its ends, each drawn in turn."""

    low: float
    high: float
    names: tuple[str, ...] = ("x",)

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high]).all() and self.low < self.high):
            raise ValueError(f"Interval({self.low}, {self.high}): low has to be less than high, both finite")

    def inside(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """At its ends and about evenly between: a network can leave the solution in a gap, most of all the first."""
        at = (np.arange(n) + generator.uniform(-0.5, 0.5, n)) / max(n - 1, 1)
        points = self.low + (self.high - self.low) * at
        points[-1:], points[:1] = self.high, self.low
        return points[:, None]

    def on_boundary(self, n: int, generator: np.random.Generator) -> np.ndarray:
        return np.resize([self.low, self.high], n)[:, None].astype(float)

    def grid(self, n: int) -> np.ndarray:
        return np.linspace(self.low, self.high, n)[:, None]

    def contains(self, points: np.ndarray) -> np.ndarray:
        return np.asarray((points[:, 0] >= self.low) & (points[:, 0] <= self.high))

    def ends(self, points: np.ndarray) -> np.ndarray:
        """Both ends, for the same reason for which `inside` has them."""
        return np.isin(points[:, 0], [self.low, self.high])


@dataclass(frozen=True)
class Polygon:
    """A simple polygon, by its vertices counter-clockwise (a rectangle is one)."""

    vertices: tuple[tuple[float, float], ...]
    names: tuple[str, ...] = ("x", "y")

    def __post_init__(self) -> None:
        if len(self.vertices) < 3:
            raise ValueError(f"Polygon({self.vertices}): needs three vertices or more")
        corners = np.array(self.vertices, float)
        if not self.area() > 1e-12 * np.prod(np.ptp(corners, axis=0)):  # nor is a NaN
            raise ValueError(f"Polygon({self.vertices}): has no area")

    @property
    def is_rectangle(self) -> bool:
        """With sides along the axes."""
        size = np.prod(np.ptp(np.array(self.vertices, float), axis=0))
        return len(self.vertices) == 4 and math.isclose(self.area(), size)

    def inside(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Uniform, by rejection from the bounding box."""
        corners = np.array(self.vertices)
        low, high = corners.min(axis=0), corners.max(axis=0)
        found = np.empty((0, 2))
        while len(found) < n:
            drawn = generator.uniform(low, high, (2 * n, 2))
            found = np.concatenate([found, drawn[self.contains(drawn)]])
        return found[:n]

    def on_boundary(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Equal steps along the boundary, from a start that is drawn."""
        corners = np.array([*self.vertices, self.vertices[0]])
        lengths = np.linalg.norm(np.diff(corners, axis=0), axis=1)
        ends = np.concatenate([[0.0], np.cumsum(lengths)])
        at = (np.arange(n) + generator.uniform()) / n * ends[-1]
        side = np.clip(np.searchsorted(ends, at, side="right") - 1, 0, len(lengths) - 1)
        share = ((at - ends[side]) / lengths[side])[:, None]
        return corners[side] + (corners[side + 1] - corners[side]) * share  # a side along an axis is exact

    def grid(self, n: int) -> np.ndarray:
        corners = np.array(self.vertices)
        low, high = corners.min(axis=0), corners.max(axis=0)
        step = np.sqrt(self.area() / n)
        counts = np.round((high - low) / step).astype(int) + 1
        axes = [np.linspace(low[i], high[i], counts[i]) for i in range(2)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
        return points[self.contains(points)]

    def area(self) -> float:
        x, y = np.array(self.vertices).T
        return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)

    def contains(self, points: np.ndarray) -> np.ndarray:
        """Even-odd rule, and a distance of under 1e-12 from a side counts as inside."""
        corners = np.array(self.vertices)
        crossings = np.zeros(len(points), int)
        near = np.zeros(len(points), bool)
        for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            side = b - a
            along = np.clip((points - a) @ side / (side @ side), 0, 1)
            near |= np.linalg.norm(points - a - along[:, None] * side, axis=1) < 1e-12
            straddles = (a[1] > points[:, 1]) != (b[1] > points[:, 1])
            if side[1] != 0:
                crossings += straddles & (points[:, 0] < a[0] + (points[:, 1] - a[1]) * side[0] / side[1])
        return np.asarray(near | (crossings % 2 == 1))

    def ends(self, points: np.ndarray) -> np.ndarray:
        """None: a polygon's corners are not among its points inside."""
        return np.zeros(len(points), bool)


@dataclass(frozen=True)
class SpaceTime:
    """[low, high] in space from time 0 `until`; its boundary is both ends in space, and its start is time 0."""

    low: float
    high: float
    until: float
    names: tuple[str, ...] = ("x", "t")

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high, self.until]).all() and self.low < self.high and self.until > 0):
            raise ValueError(
                f"SpaceTime({self.low}, {self.high}, {self.until}): low has to be less than high and until above 0, "
                "all finite"
            )

    @property
    def rectangle(self) -> Polygon:
        return rectangle((self.low, self.high), (0.0, self.until))

    def inside(self, n: int, generator: np.random.Generator) -> np.ndarray:
        return self.rectangle.inside(n, generator)

    def on_boundary(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Both ends in turn, at equal steps in time from a start that is drawn."""
        t = (np.arange(n) + generator.uniform()) / max(n, 1) * self.until
        return np.stack([np.resize([self.low, self.high], n), t], axis=1)

    def at_start(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """At time 0, at equal steps from a start that is drawn; not at the ends, which are the boundary's."""
        share = (np.arange(n) + generator.uniform(0.01, 0.99)) / max(n, 1)
        return np.stack([self.low + (self.high - self.low) * share, np.zeros(n)], axis=1)

    def grid(self, n: int) -> np.ndarray:
        return self.rectangle.grid(n)

    def contains(self, points: np.ndarray) -> np.ndarray:
        return self.rectangle.contains(points)

    def ends(self, points: np.ndarray) -> np.ndarray:
        return self.rectangle.ends(points)


def rectangle(x: tuple[float, float], y: tuple[float, float], names: tuple[str, str] = ("x", "y")) -> Polygon:
    """[x0, x1] x [y0, y1]."""
    return Polygon(((x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])), names)
