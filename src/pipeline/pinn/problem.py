"""What a problem (`contracts.physics.Problem`) is made of: columns, fields, conditions on the boundary or at points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any, Protocol

import numpy as np

from pipeline.contracts.physics import Problem
from pipeline.errors import UserError
from pipeline.spec import choice

FUNCTIONS = ("sin", "cos", "exp", "tanh", "sqrt", "log", "arctan2")  # of columns, on every backend

Math = Any  # FUNCTIONS and pi, of whatever computes: a module of a framework, or `Functions`
Column = Any  # (N, 1) of whatever computes: a NumPy or JAX array, a torch or TensorFlow tensor, a Jet


class Field(Protocol):
    """An unknown function and its derivatives at the points of a batch, each a column (N, 1).

    `output` counts the functions of a system; `coordinate` counts x, y or t as the domain has them.
    """

    def value(self, output: int = 0) -> Column: ...

    def first(self, coordinate: int, output: int = 0) -> Column:
        """The partial derivative by one coordinate."""
        ...

    def second(self, *coordinates: int, output: int = 0) -> Column:
        """The second derivative by each coordinate named, summed: `second(0, 1)` is the Laplacian of the plane."""
        ...


@dataclass(frozen=True)
class Condition:
    """One output's value on a part of the boundary, or at its own points (measurements).

    `on(points)` picks the boundary points (N, d) -> (N,) bool; `values(points)` (N, d) -> (N,) is what holds there.
    """

    name: str
    values: Callable[[np.ndarray], np.ndarray]
    output: int = 0
    on: Callable[[np.ndarray], np.ndarray] | None = None
    points: np.ndarray | None = None


class Functions:
    """`math` for residuals: FUNCTIONS and pi, as a framework's module has them; the same names everywhere."""

    def __init__(self, source: Any) -> None:
        self.pi = pi
        for name in FUNCTIONS:
            found = getattr(source, name, None) or getattr(source, name.replace("arctan", "atan"))
            setattr(self, name, found)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no math.{name}; every backend has {', '.join(FUNCTIONS)} and pi")


def terms_of(problem: Problem, hard: bool) -> list[Condition]:
    """The conditions that are terms of the loss; `hard`: those on the boundary are built into the outputs."""
    return [one for one in problem.conditions() if not (hard and one.points is None)]


def has_start(problem: Problem) -> bool:
    """Whether the domain is one of space and time, with points of their own at the start."""
    return hasattr(problem.domain, "at_start")


def on_boundary(problem: Problem, generator: np.random.Generator, at_least: int = 0) -> np.ndarray:
    """Points (N, d) for the conditions: `boundary` ones, and `initial` ones where the domain has a start."""
    domain: Any = problem.domain
    edge: np.ndarray = domain.on_boundary(max(problem.boundary, at_least), generator)
    if not has_start(problem):
        return edge
    initial = max(problem.initial, at_least)
    return np.concatenate([edge, domain.at_start(initial, generator)])


def no_point(problem: Problem, condition: Condition) -> UserError:
    """For a condition on a part of the boundary on which no point lies."""
    counts = f"dataset.boundary={problem.boundary}"
    if has_start(problem):
        counts += f" and dataset.initial={problem.initial}"
    return UserError(f"{counts}: no point for the condition {condition.name!r} of {choice(problem)}; give more")
