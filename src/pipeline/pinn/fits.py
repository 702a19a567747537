"""Whether a problem's parts fit together, found by asking them for a few points: before a framework is imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.contracts import offers
from pipeline.contracts.physics import Problem
from pipeline.errors import UserError
from pipeline.pinn import jets, solution
from pipeline.pinn.errors import WAY_POINTS
from pipeline.pinn.guard import asked
from pipeline.pinn.portable import Portable, PortableMath
from pipeline.pinn.problem import Condition, Functions, has_start, no_point, on_boundary
from pipeline.raised import in_words
from pipeline.spec import choice

FEW = 16  # points at which a problem's parts are tried, and its classical solver timed
RESERVED = ("inside", "loss", "residual", "step", "training_s", "relative_l2")  # other things' names beside the terms


def check_fits(problem: Problem, *, hard: bool = False) -> None:
    """Refuse equations, conditions and references that do not fit the domain. Raises UserError naming the part.

    `hard`: conditions on the boundary are built into the outputs and need no points there.
    """
    generator = np.random.default_rng(0)
    inside = _check_domain(problem, generator)
    _check_residuals(problem, inside)
    _check_outputs(problem, inside)
    conditions = _called(problem, "conditions()", problem.conditions)
    _check_names(problem, conditions)
    edge = _edge(problem, generator, FEW if hard else 1)
    drawn = None if hard else _edge(problem, np.random.default_rng(0), 0)
    for condition in conditions:
        _check_condition(problem, condition, edge, drawn)
    size = _check_reference(problem, inside, edge)
    if offers(problem, Problem.hard):
        line = solution.Fitted(((np.ones((inside.shape[1], problem.outputs)), np.ones(problem.outputs)),), hard=True)
        _check_met(problem, "hard()", edge, solution.predict(line, problem, edge), within=1e-6 * size)
    if problem.corner is not None:
        _check_corner(problem, generator)


def check_classical(problem: Problem) -> None:
    """Refuse a classical solver that fails, or gives neither the solution at points nor a bound on its error. Raises
    UserError."""
    points = problem.domain.grid(FEW)
    found = _called(problem, "classical()", lambda: problem.classical(points))
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str)):
        wanted = "give its name, and the solution or a bound on its error"
        raise _wrong(problem, f"classical() gives {type(found).__name__}; {wanted}")
    bound = _called(problem, "classical()", found[1]) if callable(found[1]) else found[1]
    if not isinstance(bound, float):
        _expect(problem, "classical()", bound, (len(points), problem.outputs))


def _check_domain(problem: Problem, generator: np.random.Generator) -> np.ndarray:
    """The numbers of points, and what the domain gives. Some points inside, (FEW, d)."""
    if problem.interior < 1 or problem.boundary < 0:
        raise _wrong(
            problem, f"interior={problem.interior} and boundary={problem.boundary} points; give 1 and 0 or more"
        )
    inside: np.ndarray = _called(problem, "the domain", lambda: problem.domain.inside(FEW, generator))
    _expect(problem, "the domain's points", inside, (FEW, len(problem.domain.names)))
    ends = _called(problem, "the domain", lambda: problem.domain.ends(inside))
    _expect(problem, "the domain's ends", ends, (FEW,))
    outside = _outside(problem, inside)
    if len(outside):
        raise _wrong(problem, f"the domain draws a point outside of itself: {outside[0]}")
    return inside


def _check_names(problem: Problem, conditions: Sequence[Condition]) -> None:
    """There are conditions, and all terms have names of their own."""
    if not conditions:
        raise _wrong(problem, "has no conditions, and without one it has no single solution")
    names = [condition.name for condition in conditions]
    if len({*names, *problem.equations}) < len(names) + len(problem.equations):
        raise _wrong(problem, f"two of its terms have the same name ({', '.join([*problem.equations, *names])})")
    taken = [name for name in (*problem.equations, *names) if name in RESERVED]
    if taken:
        raise _wrong(problem, f"a term is named {taken[0]!r}, which is the name of something else; give it another")


def _check_reference(problem: Problem, inside: np.ndarray, edge: np.ndarray) -> float:
    """The reference is not 0 everywhere and meets the conditions. Its largest value at these points."""
    everywhere = np.concatenate([inside, edge])  # at once: a reference may be dear
    reference = _called(problem, "reference()", lambda: problem.reference(everywhere))
    _expect(problem, "reference()", reference, (len(everywhere), problem.outputs))
    size = float(np.abs(reference).max())
    if not size and not problem.reference(problem.domain.grid(WAY_POINTS)).any():  # nor between the few points
        why = "so that a relative error is not defined; add a function of the coordinates to the solution"
        raise _wrong(problem, f"reference() is 0 at each point, {why}")
    _check_met(problem, "reference()", edge, reference[FEW:], within=1e-2 * size)
    return size


def _edge(problem: Problem, generator: np.random.Generator, at_least: int) -> np.ndarray:
    """The points for the conditions."""
    counts = [problem.boundary, *([problem.initial] if has_start(problem) else [])]
    edge = _called(problem, "the domain's boundary", lambda: on_boundary(problem, generator, at_least))
    wanted = sum(max(count, at_least) for count in counts)
    _expect(problem, "the domain's boundary", edge, (wanted, len(problem.domain.names)))
    return np.asarray(edge)


def _check_residuals(problem: Problem, points: np.ndarray) -> None:
    def computed() -> Sequence[Any]:
        order, seconds = asked(problem)
        x = jets.coordinates(np, points, seconds, order)
        parts = np.concatenate([np.sin(x.parts[..., :1])] * problem.outputs, axis=-1).view(Portable)
        field = jets.JetField(jets.Jet(np, parts, x.coordinates, x.seconds))
        columns = [points[:, index : index + 1].view(Portable) for index in range(points.shape[1])]
        return problem.residuals(columns, field, Functions(PortableMath()), problem.unknowns)

    found = _called(problem, "residuals()", computed)
    if not isinstance(found, list | tuple):
        raise _wrong(problem, f"residuals() gives {type(found).__name__}, not a list; is its `return` missing?")
    if len(found) != len(problem.equations):
        raise _wrong(problem, f"residuals() gives {len(found)}; `equations` names {len(problem.equations)}")
    for name, residual in zip(problem.equations, found, strict=True):
        _expect(problem, f"the residual {name!r}", residual, (FEW, 1))


def _check_met(problem: Problem, what: str, edge: np.ndarray, values: np.ndarray, within: float) -> None:
    """Whether the values (N, outputs) on the boundary are those of the conditions, but for `within`."""
    for condition in problem.conditions():
        if condition.points is not None:  # measurements may err
            continue
        on = np.ones(len(edge), bool) if condition.on is None else np.asarray(condition.on(edge), bool)
        found, wanted = values[on, condition.output], np.asarray(condition.values(edge[on]), float)
        off = np.abs(found - wanted) > within
        if off.any():
            first = int(np.argmax(off))
            raise _wrong(
                problem,
                f"{what} does not meet the condition {condition.name!r}: it is {found[first]:.6g} at "
                f"{edge[on][first]} and should be {wanted[first]:.6g}",
            )


def _check_outputs(problem: Problem, points: np.ndarray) -> None:
    """The hard conditions and the enrichment, where there are any, with the derivatives that the equations need."""
    order, seconds = asked(problem)
    x = jets.coordinates(np, points, seconds, order)
    if offers(problem, Problem.hard):
        line = (np.ones((points.shape[1], problem.outputs)), np.ones(problem.outputs))  # a network of one layer
        made = _called(problem, "hard()", lambda: solution.outputs(problem, x, [line], hard=True).parts)
        _expect(problem, "hard()", made, (len(x.parts), FEW, problem.outputs))
    if offers(problem, Problem.enrichment):
        names = problem.enriched
        added = _called(problem, "enrichment()", lambda: solution.enriched(problem, x).parts)
        if added.shape[-1] != len(names):
            raise _wrong(problem, f"enrichment() gives {added.shape[-1]}; `enriched` names {len(names)}")
        _expect(problem, "enrichment()", added, (len(x.parts), FEW, len(names)))


def _check_condition(problem: Problem, condition: Condition, edge: np.ndarray, drawn: np.ndarray | None) -> None:
    """`drawn`: the points on the boundary of a training with soft conditions."""
    name = f"the condition {condition.name!r}"
    if not 0 <= condition.output < problem.outputs:
        raise _wrong(problem, f"{name} is on output {condition.output}; there are {problem.outputs}, from 0")
    points = condition.points
    if points is None:
        points = edge if condition.on is None else _called(problem, name, lambda: edge[condition.on(edge)])
        if drawn is not None and not len(drawn if condition.on is None else drawn[condition.on(drawn)]):
            raise no_point(problem, condition)
    elif not len(points):
        raise _wrong(problem, f"{name} has no points")
    else:
        _expect(problem, f"the points of {name}", points, (len(points), len(problem.domain.names)))
        outside = _outside(problem, points)
        if len(outside):
            raise _wrong(problem, f"{name} has a point outside the domain: {outside[0]}")
    values = _called(problem, name, lambda: condition.values(points))
    _expect(problem, name, values, (len(points),))


def _check_corner(problem: Any, generator: np.random.Generator) -> None:
    near = _called(problem, "the corner", lambda: problem.corner.draw(FEW, generator))
    _expect(problem, "the corner's points", near, (FEW, len(problem.domain.names)))
    if _called(problem, "the corner", lambda: problem.corner.domain != problem.domain):
        raise _wrong(problem, "the corner is one of another domain")
    weight = _called(problem, "the corner", lambda: problem.corner.weight(near))
    _expect(problem, "the corner's weight", weight, (FEW,))


def _outside(problem: Problem, points: np.ndarray) -> np.ndarray:
    """Those of the points that the domain does not contain."""
    return np.asarray(_called(problem, "the domain", lambda: points[~problem.domain.contains(points)]))


def _called(problem: Problem, what: str, ask: Any) -> Any:
    """What the problem's own code gives; its error as a message."""
    try:
        return ask()
    except Exception as error:  # whatever a user's expression may raise
        raise _wrong(problem, f"{what} cannot be computed ({in_words(error)})") from error


def _expect(problem: Problem, what: str, found: Any, shape: tuple[int, ...]) -> None:
    array = np.asarray(found)
    if array.shape != shape:
        raise _wrong(problem, f"{what} has the shape {array.shape}; it has to be {shape}")
    if not np.isfinite(array.astype(float)).all():
        raise _wrong(problem, f"{what} is not finite inside the domain")


def _wrong(problem: Problem, what: str) -> UserError:
    return UserError(f"dataset={choice(problem)}: {what}")
