"""A problem in DeepXDE's terms: its geometry, the residuals by its automatic differentiation, its conditions."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from pipeline.contracts.physics import Problem
from pipeline.errors import Impossible
from pipeline.pinn.domain import Interval, Polygon, SpaceTime
from pipeline.pinn.problem import Condition, Functions, has_start, no_point, terms_of

MATH = {"torch": "torch", "jax": "jax.numpy", "tensorflow": "tensorflow.math"}


class DeepxdeField:
    """DeepXDE's outputs as a problem's Field."""

    def __init__(self, grad: ModuleType, x: Any, y: Any, paired: bool) -> None:
        self.grad, self.x, self.y = grad, x, y
        self.paired = paired  # on JAX every value comes with the function that gives it

    def value(self, output: int = 0) -> Any:
        values = self.y[0] if self.paired else self.y
        return values[:, output : output + 1]

    def first(self, coordinate: int, output: int = 0) -> Any:
        return self._plain(self.grad.jacobian(self.y, self.x, i=output, j=coordinate))

    def second(self, *coordinates: int, output: int = 0) -> Any:
        each = [self.grad.hessian(self.y, self.x, component=output, i=one, j=one) for one in coordinates]
        return sum(self._plain(one) for one in each)

    def _plain(self, found: Any) -> Any:
        return found[0] if self.paired else found


def data_of(
    dde: ModuleType, problem: Problem, backend: str, test_points: int | None, unknowns: Mapping[str, Any]
) -> Any:
    """DeepXDE's data: a function's values where there is no equation, otherwise the equations and their conditions."""
    geometry = geometry_of(dde, problem)
    conditions = terms_of(problem, problem.recipe.hard)
    if is_plain_fit(problem, geometry):
        (only,) = conditions
        data = dde.data.Function(
            geometry, lambda points: _column(dde, only, points), problem.interior, test_points, "uniform"
        )
        data.train_next_batch()
        data.test()
    else:
        residuals = residuals_of(dde, problem, backend, unknowns) if problem.equations else None
        timed: Any = has_start(problem)
        data = (dde.data.TimePDE if timed else dde.data.PDE)(
            geometry,
            residuals,
            [_condition(dde, geometry, condition) for condition in conditions],
            num_domain=problem.interior,
            num_boundary=problem.boundary,
            num_test=test_points,
            anchors=_anchors(dde, problem),
            **({"num_initial": problem.initial} if timed else {}),
        )
        _check_points(problem, conditions, data.num_bcs)
    for name in ("train_x", "train_y", "train_x_all", "train_x_bc", "test_x", "test_y"):
        if isinstance(getattr(data, name, None), np.ndarray):  # a Polygon's come in float64 whatever was asked for
            setattr(data, name, getattr(data, name).astype(dde.config.real(np)))
    return data


def is_plain_fit(problem: Problem, geometry: Any) -> bool:
    """Whether the problem is one function's values at DeepXDE's own equispaced points."""
    if problem.equations or problem.outputs > 1 or len(problem.conditions()) > 1:
        return False
    points, its = problem.conditions()[0].points, geometry.uniform_points(problem.interior, True)
    if points is None or points.shape != its.shape:
        return False
    return bool(np.allclose(points, its, atol=4 * np.finfo(its.dtype).eps * np.abs(its).max()))  # its are rounded


def geometry_of(dde: ModuleType, problem: Problem) -> Any:
    """DeepXDE's own geometry of the domain. Raises Impossible where it has none."""
    domain = problem.domain
    if isinstance(domain, Interval):
        return dde.geometry.Interval(domain.low, domain.high)
    if isinstance(domain, SpaceTime):
        space, time = dde.geometry.Interval(domain.low, domain.high), dde.geometry.TimeDomain(0, domain.until)
        return dde.geometry.GeometryXTime(space, time)
    if isinstance(domain, Polygon):
        corners = np.array(domain.vertices, float)
        if domain.is_rectangle:
            return dde.geometry.Rectangle(corners.min(axis=0), corners.max(axis=0))
        if len(corners) == 3:
            return dde.geometry.Triangle(*corners)
        return dde.geometry.Polygon(domain.vertices)
    raise Impossible(
        f"dataset: solver=deepxde_* has no geometry for a {type(domain).__name__}; use an Interval, a Polygon or "
        "a SpaceTime, or another solver"
    )


def residuals_of(dde: ModuleType, problem: Problem, backend: str, unknowns: Mapping[str, Any]) -> Any:
    """The function that DeepXDE calls with its points and outputs."""
    columns = len(problem.domain.names)
    functions = Functions(importlib.import_module(MATH[backend]))

    def split(x: Any) -> list[Any]:
        return [x[:, index : index + 1] for index in range(columns)]

    def residuals(x: Any, y: Any) -> Sequence[Any]:
        return problem.residuals(split(x), DeepxdeField(dde.grad, x, y, paired=False), functions, unknowns)

    guesses = tuple(problem.unknowns.values())

    def of_jax(x: Any, y: Any, unknowns: Any = guesses) -> Sequence[Any]:
        named = dict(zip(problem.unknowns, unknowns, strict=True))
        return problem.residuals(split(x), DeepxdeField(dde.grad, x, y, paired=True), functions, named)

    return of_jax if backend == "jax" else residuals


def output_transform(problem: Problem, backend: str) -> Any:
    """The function by which DeepXDE makes the outputs satisfy the conditions on the boundary."""
    module = importlib.import_module(MATH[backend].partition(".")[0])
    functions = Functions(importlib.import_module(MATH[backend]))
    join = {"torch": "cat", "tensorflow": "concat", "jax": "numpy.concatenate"}[backend]
    for name in join.split("."):
        module = getattr(module, name)

    def transform(x: Any, y: Any) -> Any:
        """One point at a time on JAX."""
        columns = [x[..., index : index + 1] for index in range(len(problem.domain.names))]
        outputs = [y[..., index : index + 1] for index in range(problem.outputs)]
        return module(problem.hard(columns, outputs, functions), -1)  # type: ignore[operator]

    return transform


def _anchors(dde: ModuleType, problem: Problem) -> np.ndarray | None:
    """The measurements' points, where the source asks the equations there too."""
    points = [one.points for one in problem.conditions() if one.points is not None]
    return np.vstack(points).astype(dde.config.real(np)) if points and problem.recipe.anchors else None


def _condition(dde: ModuleType, geometry: Any, condition: Condition) -> Any:
    if condition.points is not None:
        points = condition.points.astype(dde.config.real(np))
        return dde.icbc.PointSetBC(points, _column(dde, condition, condition.points), component=condition.output)
    picked = condition.on
    at_start = getattr(geometry, "on_initial", None)  # of space and time, whose boundary does not have its start

    def here(x: np.ndarray, on_boundary: bool) -> bool:
        known = on_boundary or (at_start is not None and at_start(x[None])[0])
        return bool(known and (picked is None or picked(x[None])[0]))

    return dde.icbc.DirichletBC(
        geometry, lambda points: _column(dde, condition, points), here, component=condition.output
    )


def _column(dde: ModuleType, condition: Condition, points: np.ndarray) -> np.ndarray:
    return condition.values(points)[:, None].astype(dde.config.real(np))


def _check_points(problem: Problem, conditions: list[Condition], counts: list[int]) -> None:
    """That every condition has a point. Raises UserError."""
    for condition, count in zip(conditions, counts, strict=True):
        if not count:
            raise no_point(problem, condition)
