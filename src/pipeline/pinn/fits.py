"""Whether a problem's parts fit together, found by asking them for a few points: before a framework is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.pinn import jets
from pipeline.pinn.guard import asked
from pipeline.pinn.problem import Condition, Problem

FEW = 16


def check_fits(problem: Problem) -> None:
    """Refuse equations, conditions and references that do not fit the domain. Raises UserError naming the part."""
    generator = np.random.default_rng(0)
    inside = _called(problem, "the domain", lambda: problem.domain.inside(FEW, generator))
    _expect(problem, "the domain's points", inside, (FEW, len(problem.domain.names)))
    outside = ~problem.domain.contains(inside)
    if outside.any():
        raise _wrong(problem, f"the domain draws a point outside of itself: {inside[outside][0]}")
    _check_residuals(problem, inside)
    conditions = problem.conditions()
    if not conditions:
        raise _wrong(problem, "has no conditions; without one every constant or none would do")
    names = [condition.name for condition in conditions]
    if len({*names, *problem.equations}) < len(names) + len(problem.equations):
        raise _wrong(problem, f"two of its terms have one name ({', '.join([*problem.equations, *names])})")
    edge = problem.domain.on_boundary(max(problem.boundary, 1), generator)
    for condition in conditions:
        _check_condition(problem, condition, edge)
    reference = _called(problem, "reference()", lambda: problem.reference(inside))
    _expect(problem, "reference()", reference, (FEW, problem.outputs))


def _check_residuals(problem: Problem, points: np.ndarray) -> None:
    def computed() -> list[Any]:
        order, seconds = asked(problem)
        x = jets.coordinates(np, points, seconds, order)
        parts = np.concatenate([np.sin(x.parts[..., :1])] * problem.outputs, axis=-1)
        field = jets.JetField(jets.Jet(np, parts, x.coordinates, x.seconds))
        columns = [points[:, index : index + 1] for index in range(points.shape[1])]
        return problem.residuals(columns, field, np, problem.unknowns)

    found = _called(problem, "residuals()", computed)
    if len(found) != len(problem.equations):
        raise _wrong(problem, f"residuals() gives {len(found)}; `equations` names {len(problem.equations)}")
    for name, residual in zip(problem.equations, found, strict=True):
        _expect(problem, f"the residual {name!r}", residual, (FEW, 1))


def _check_condition(problem: Problem, condition: Condition, edge: np.ndarray) -> None:
    name = f"the condition {condition.name!r}"
    if not 0 <= condition.output < problem.outputs:
        raise _wrong(problem, f"{name} is on output {condition.output}; there are {problem.outputs}, from 0")
    points = condition.points
    if points is None:
        points = edge if condition.on is None else edge[_called(problem, name, lambda: condition.on(edge))]
        if not problem.boundary or not len(points):
            raise UserError(f"dataset.boundary={problem.boundary}: no point for {name} of {_name(problem)}; give more")
    elif not len(points):
        raise _wrong(problem, f"{name} has no points")
    else:
        _expect(problem, f"the points of {name}", points, (len(points), len(problem.domain.names)))
        outside = ~problem.domain.contains(points)
        if outside.any():
            raise _wrong(problem, f"{name} has a point outside the domain: {points[outside][0]}")
    values = _called(problem, name, lambda: condition.values(points))
    _expect(problem, name, values, (len(points),))


def _called(problem: Problem, what: str, ask: Any) -> Any:
    """What the problem's own code gives; its error as a message."""
    try:
        return ask()
    except Exception as error:  # whatever a user's expression may raise
        raise _wrong(problem, f"{what} cannot be computed ({type(error).__name__}: {error})") from error


def _expect(problem: Problem, what: str, found: Any, shape: tuple[int, ...]) -> None:
    array = np.asarray(found)
    if array.shape != shape:
        raise _wrong(problem, f"{what} has the shape {array.shape}; it has to be {shape}")
    if not np.isfinite(array.astype(float)).all():
        raise _wrong(problem, f"{what} is not finite inside the domain")


def _wrong(problem: Problem, what: str) -> UserError:
    return UserError(f"dataset={_name(problem)}: {what}")


def _name(problem: Problem) -> str:
    return type(problem).__module__.rpartition(".")[2]
