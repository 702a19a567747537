"""Problems: each reference solves its equations and meets its conditions; domains are what they say."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.pinn.problems
from pipeline.contracts import offers
from pipeline.contracts.physics import Problem
from pipeline.errors import UserError
from pipeline.pinn.domain import Interval, Polygon, SpaceTime, rectangle
from pipeline.pinn.problem import on_boundary
from pipeline.pinn.references import allen_cahn, burgers, lshape
from pipeline.spec import build

CONF = Path(__file__).parents[1] / "conf" / "dataset"


def shipped() -> dict[str, dict[str, Any]]:
    """The configs of conf/dataset that are problems, by name."""
    nodes = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(CONF.glob("*.yaml"))}
    return {name: node for name, node in nodes.items() if node["_target_"].startswith("pipeline.pinn.problems.")}


NAMES = list(shipped())
# What a solution's residual may be, by fourth-order differences of step 1e-3, and where it is looked at: not in the
# corner of the L-shape, nor in the layer of Burgers' equation, which the differences cannot resolve.
WITHIN = {"ode": 1e-9, "poisson_lshape": 1e-6, "burgers": 1e-5, "allen_cahn": 1e-5, "diffusion_inverse": 1e-8}
STEP = 1e-3


def problem_of(name: str) -> Any:
    return build(shipped()[name], "dataset")


@dataclass(frozen=True)
class Differences:
    """The reference as a Field, by central differences of fourth order."""

    problem: Problem
    points: np.ndarray
    factor: float = 1.0

    def _shifted(self, coordinate: int, steps: int, output: int) -> np.ndarray:
        moved = self.points.copy()
        moved[:, coordinate] += steps * STEP
        return self.factor * self.problem.reference(moved)[:, output : output + 1]

    def value(self, output: int = 0) -> np.ndarray:
        return self._shifted(0, 0, output)

    def first(self, coordinate: int, output: int = 0) -> np.ndarray:
        weights = {-2: 1, -1: -8, 1: 8, 2: -1}
        return np.asarray(sum(w * self._shifted(coordinate, k, output) for k, w in weights.items()) / (12 * STEP))

    def second(self, *coordinates: int, output: int = 0) -> np.ndarray:
        weights = {-2: -1, -1: 16, 0: -30, 1: 16, 2: -1}
        return np.asarray(
            sum(w * self._shifted(c, k, output) for c in coordinates for k, w in weights.items()) / (12 * STEP**2)
        )


def looked_at(problem: Any) -> np.ndarray:
    """Points inside, at least four steps from the boundary and off what differences cannot resolve."""
    points = problem.domain.inside(600, np.random.default_rng(0))
    for coordinate in range(points.shape[1]):
        for steps in (-20, 20):
            moved = points.copy()
            moved[:, coordinate] += steps * STEP
            points = points[problem.domain.contains(moved)]
    if isinstance(problem.domain, Interval):
        return points
    return points[np.abs(points[:, 0]) > 0.2]


def residual(problem: Any, factor: float = 1.0) -> float:
    """The largest of the reference times `factor`."""
    points = looked_at(problem)
    assert len(points) > 200
    true = {"C": 1.0} if problem.unknowns else {}
    columns = [points[:, i : i + 1] for i in range(points.shape[1])]
    found = problem.residuals(columns, Differences(problem, points, factor), np, true)
    assert len(found) == len(problem.equations)
    return max(float(np.abs(one).max()) for one in found)


def test_every_problem_ships_with_its_config() -> None:
    assert set(NAMES) == {module.name for module in pkgutil.iter_modules(pipeline.pinn.problems.__path__)}


@pytest.mark.parametrize("name", NAMES)
def test_a_config_says_what_the_spec_has(name: str) -> None:
    node = shipped()[name]
    module, _, cls = node.pop("_target_").rpartition(".")
    signature = inspect.signature(getattr(importlib.import_module(module), cls))
    assert node == {key: parameter.default for key, parameter in signature.parameters.items()}


@pytest.mark.parametrize("name", WITHIN)
def test_the_reference_solves_the_equations(name: str) -> None:
    problem = problem_of(name)
    assert residual(problem) < WITHIN[name]
    if name != "ode":  # which is linear without a right-hand side: a multiple of its solution solves it
        assert residual(problem, factor=1.001) > 5 * WITHIN[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_meets_the_conditions(name: str) -> None:
    problem = problem_of(name)
    edge = on_boundary(problem, np.random.default_rng(1), at_least=100)
    for condition in problem.conditions():
        points = condition.points if condition.points is not None else edge
        points = points[condition.on(points)] if condition.on else points
        assert len(points), condition.name
        assert problem.domain.contains(points).all()
        met = problem.reference(points)[:, condition.output]
        assert met == pytest.approx(condition.values(points), abs=1e-12), condition.name


@pytest.mark.parametrize("name", NAMES)
def test_hard_conditions_hold_whatever_the_network_says(name: str) -> None:
    problem = problem_of(name)
    if not offers(problem, Problem.hard):
        pytest.skip(f"{name} has no hard conditions")
    generator = np.random.default_rng(2)
    edge = on_boundary(problem, generator, at_least=200)
    said = [generator.normal(0, 10, (len(edge), 1)) for _ in range(problem.outputs)]
    outputs = problem.hard([edge[:, i : i + 1] for i in range(edge.shape[1])], said, np)
    held = [condition for condition in problem.conditions() if condition.points is None]
    assert held
    for condition in held:
        on = condition.on(edge)
        assert on.any(), condition.name
        assert outputs[condition.output][on, 0] == pytest.approx(condition.values(edge[on]), abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_covers_the_grid(name: str) -> None:
    problem = problem_of(name)
    grid = problem.domain.grid(10_000)
    found = problem.reference(grid)
    assert found.shape == (len(grid), problem.outputs)
    assert found.dtype == np.float64
    assert np.isfinite(found).all()
    alone = problem.reference(grid[::-7])  # a point's value does not hang on the others
    assert np.abs(found[::-7] - alone).max() < 1e-13


def test_burgers_with_twice_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    points = rectangle((-1, 1), (0, 1)).grid(500)
    found = burgers.solution(points)
    monkeypatch.setattr(burgers, "NODES", np.linspace(-18, 18, 1601))
    assert np.abs(burgers.solution(points) - found).max() < 1e-13


def test_allen_cahn_with_fewer_points_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    points = rectangle((-1, 1), (0, 1)).grid(500)
    found = allen_cahn.solution(points)
    allen_cahn._computed.cache_clear()
    monkeypatch.setattr(allen_cahn, "INTERVALS", 512)
    monkeypatch.setattr(allen_cahn, "STEPS", 500)
    coarser = allen_cahn.solution(points)
    allen_cahn._computed.cache_clear()
    assert np.abs(coarser - found).max() < 1e-8
    assert found.min() >= -1 - 1e-10  # the maximum principle
    assert found.max() <= 1


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [(name, "interior", 0) for name in NAMES]
    + [("burgers", "boundary", -1), ("poisson_lshape", "boundary", -1), ("diffusion_inverse", "measurements", 0)]
    + [("diffusion_inverse", "measurements", 3), ("burgers", "initial", -1), ("allen_cahn", "initial", 0.5)]
    + [("ode", "interior", 3.5), ("poisson_lshape", "enrichment", True)],
)
def test_what_does_not_fit_is_refused(name: str, key: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^dataset\.{key}"):
        build(shipped()[name] | {key: value}, "dataset")


@st.composite
def polygons(draw: st.DrawFn) -> Polygon:
    """The L-shape, a rectangle, or a star of three to nine corners."""
    kind = draw(st.sampled_from(["lshape", "rectangle", "star"]))
    if kind == "lshape":
        return Polygon(lshape.VERTICES)
    low, wide, high = (draw(st.floats(0.1, 5)) for _ in range(3))
    if kind == "rectangle":
        return rectangle((low, low + wide), (-high, high))
    radii = draw(st.lists(st.floats(0.3, 3), min_size=3, max_size=9))
    angles = 2 * np.pi * np.arange(len(radii)) / len(radii)
    return Polygon(tuple((r * float(np.cos(a)), r * float(np.sin(a))) for r, a in zip(radii, angles, strict=True)))


@settings(max_examples=30)
@given(polygons(), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_points_of_a_polygon(polygon: Polygon, n: int, seed: int) -> None:
    inside = polygon.inside(n, np.random.default_rng(seed))
    edge = polygon.on_boundary(n, np.random.default_rng(seed))
    assert inside.shape == edge.shape == (n, 2)
    assert polygon.contains(inside).all()
    assert polygon.contains(polygon.grid(n)).all()
    corners = np.array(polygon.vertices)
    assert from_rim(corners, edge).max() < 1e-12
    rim = corners.min(axis=0), corners.max(axis=0)
    if len(corners) == 4 and polygon.area() == pytest.approx(np.prod(rim[1] - rim[0])):
        assert all((point == rim[0]).any() or (point == rim[1]).any() for point in edge), "on a side, and not beside it"
    beyond = corners.max(axis=0) + 0.1
    assert not polygon.contains(np.concatenate([inside + beyond - corners.min(axis=0), [beyond]])).any()
    assert np.array_equal(inside, polygon.inside(n, np.random.default_rng(seed)))


@settings(max_examples=30)
@given(polygons())
def test_the_area_of_a_polygon(polygon: Polygon) -> None:
    """Against a count of points of the bounding box."""
    corners = np.array(polygon.vertices)
    low, high = corners.min(axis=0), corners.max(axis=0)
    drawn = low + (high - low) * (np.stack(np.meshgrid(*[np.arange(200) + 0.5] * 2), axis=-1).reshape(-1, 2) / 200)
    assert polygon.contains(drawn).mean() * np.prod(high - low) == pytest.approx(polygon.area(), rel=0.05)


def from_rim(corners: np.ndarray, points: np.ndarray) -> np.ndarray:
    """How much longer it is to a side's two ends than the side: 0 on the side."""
    after = np.roll(corners, -1, axis=0)
    ways = [np.linalg.norm(points[:, None] - ends, axis=2) for ends in (corners, after)]
    return np.asarray((ways[0] + ways[1] - np.linalg.norm(after - corners, axis=1)).min(axis=1))


@given(st.floats(-10, 10), st.floats(0.1, 10), st.floats(0.1, 10), st.integers(0, 50), st.integers(0, 2**32 - 1))
def test_points_of_space_and_time(low: float, length: float, until: float, n: int, seed: int) -> None:
    """At the ends at any time, at the start anywhere between the ends, and none where no condition is."""
    domain = SpaceTime(low, low + length, until)
    drawn = [draw(n, np.random.default_rng(seed)) for draw in (domain.inside, domain.on_boundary, domain.at_start)]
    for points in drawn:
        assert points.shape == (n, 2)
        assert domain.contains(points).all()
    _, edge, start = drawn
    assert set(edge[:, 0]) <= {domain.low, domain.high} and (n < 2 or len(set(edge[:, 0])) == 2)
    assert (start[:, 1] == 0).all() and len(set(start[:, 0])) == n
    assert not {domain.low, domain.high} & set(start[:, 0]), "a condition at the ends has points of its own"
    assert domain.contains(domain.grid(100)).all() and not domain.ends(drawn[0]).any()


@pytest.mark.parametrize("until", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_is_no_domain(until: float) -> None:
    with pytest.raises(ValueError, match=r"^SpaceTime\(0.0, 1.0, .*\): low has to be less than high and until above 0"):
        SpaceTime(0.0, 1.0, until)


@given(st.floats(-10, 10), st.floats(0.1, 10), st.integers(2, 50), st.integers(0, 2**32 - 1))
def test_points_of_an_interval(low: float, length: float, n: int, seed: int) -> None:
    interval = Interval(low, low + length)
    for points in (interval.inside(n, np.random.default_rng(seed)), interval.grid(n)):
        assert points.shape == (n, 1)
        assert interval.contains(points).all()
    assert set(interval.on_boundary(n, np.random.default_rng(seed))[:, 0]) == {low, low + length}
    assert not interval.contains(np.array([[low - 1e-6], [low + length + 1e-6]])).any()


@given(st.integers(1, 200), st.floats(-5, 5), st.floats(0.1, 20), st.integers(0, 99))
def test_an_intervals_points_leave_no_gap(n: int, low: float, length: float, seed: int) -> None:
    """The ends are among them, and no two neighbours are further apart than two equal steps."""
    interval = Interval(low, low + length)
    (found,) = interval.inside(n, np.random.default_rng(seed)).T
    assert found.shape == (n,) and interval.contains(found[:, None]).all()
    assert found[0] == low and (n == 1 or found[-1] == interval.high)
    assert (np.diff(found) >= 0).all() and (np.diff(found) < 2 * length / max(n - 1, 1) + 1e-12).all()
    assert np.array_equal(found[:, None], interval.inside(n, np.random.default_rng(seed)))
