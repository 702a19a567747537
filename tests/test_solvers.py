"""Our own solvers, run in a process of their own (in_jax.py): their derivatives, what they reach, what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import done, failed, refused
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import Impossible, UserError
from pipeline.machine.device import gpus
from pipeline.pinn import solution
from pipeline.pinn.corner import Corner
from pipeline.pinn.domain import Interval, Polygon
from pipeline.pinn.problems.burgers import Burgers
from pipeline.pinn.problems.diffusion_inverse import DiffusionInverse
from pipeline.pinn.problems.function import Function
from pipeline.pinn.problems.ode import Ode
from pipeline.pinn.problems.poisson_lshape import PoissonLShape
from pipeline.pinn.solution import Fitted
from pipeline.pinn.solvers.adam import Adam
from pipeline.pinn.solvers.gauss_newton import GaussNewton
from pipeline.pinn.solvers.lbfgs import Lbfgs
from pipeline.pinn.solvers.own import Own, unused_points
from pipeline.pinn.solvers.side_by_side import chosen
from pipeline.pinn.solvers.ssbroyden import SsBroyden

pytestmark = pytest.mark.timeout(3000)  # everything that needs JAX runs once, in one process

WITH_EQUATIONS = ("ode hard", "poisson enriched", "poisson graded")
ANSATZE = ("function", *WITH_EQUATIONS)
REACHED = {"adam": 5e-2, "lbfgs": 2e-2, "ssbroyden": 1e-4, "gauss_newton": 1e-3, "features": 1e-8}
PINN = ("stage=pinn", "backend=jax", "tracking=none")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return in_jax("first", tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return in_jax("more", tmp_path_factory.mktemp("more"))


def in_jax(part: str, folder: Path) -> dict[str, Any]:
    """What a part of in_jax.py found."""
    command = [sys.executable, str(Path(__file__).with_name("in_jax.py")), part, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=2000, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    result: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return result


@pytest.mark.parametrize("name", WITH_EQUATIONS)
@pytest.mark.wide
def test_residuals_are_those_of_automatic_differentiation(found: dict[str, Any], name: str) -> None:
    result = found["derivatives"][name]
    assert result["size"] > 0.1, "residuals of zero prove nothing"
    assert result["residual"] <= 1e-12 * max(1, result["size"])


@pytest.mark.parametrize("name", ANSATZE)
@pytest.mark.wide
def test_jacobian_gradient_and_terms_belong_to_one_loss(found: dict[str, Any], name: str) -> None:
    result = found["derivatives"][name]
    assert max(result["jacobian"], result["gradient"], result["loss"]) <= 1e-12, result


@pytest.mark.parametrize("name", REACHED)
@pytest.mark.wide
def test_a_solver_reaches_its_error(found: dict[str, Any], name: str) -> None:
    result = found["solved"][name]
    assert result["error"] <= REACHED[name]
    assert result["losses"][-1] < result["losses"][0] or result["losses"][-1] < 1e-20
    assert result["dtypes"] == ["float64"]


@pytest.mark.wide
def test_a_quasi_newton_method_only_goes_down(found: dict[str, Any]) -> None:
    for name in ("lbfgs", "ssbroyden", "gauss_newton"):
        assert (np.diff(found["solved"][name]["losses"]) <= 0).all(), name


@pytest.mark.wide
def test_float32_is_float32(found: dict[str, Any]) -> None:
    assert found["fp32"]["dtypes"] == ["float32"]


@pytest.mark.wide
def test_the_coefficient_of_the_singularity_is_found(more: dict[str, Any]) -> None:
    """The L-shape's r^(2/3), to four digits by 200 neurons."""
    result = more["enriched"]
    assert result["error"] <= 1e-4
    assert result["enrichment"]["r^(2/3)"] == pytest.approx(0.4019310310137, abs=1e-4)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["adam", "gauss_newton", "uneven boundary"])
def test_seeds_at_once_are_seeds_alone(more: dict[str, Any], name: str) -> None:
    result = more["together"][name]
    assert max(result["distances"]) <= 1e-8
    assert result["evaluations"][0] == result["evaluations"][1]
    assert len({round(loss, 9) for loss in result["losses"]}) == 3, "seeds that do not differ prove nothing"
    assert result["best"] == pytest.approx(min(result["losses"]), rel=1e-6)


@pytest.mark.wide
def test_seeds_at_once_may_have_unlike_numbers_of_points(more: dict[str, Any]) -> None:
    """Of a condition, as each seed's points on the boundary start elsewhere; the test above trains them."""
    counts = more["together"]["uneven boundary"]["counts"]
    assert len({one["u on the left"] for one in counts}) > 1, "counts that do not differ prove nothing"


@pytest.mark.wide
def test_the_wall_clock_leaves_nothing_out(more: dict[str, Any]) -> None:
    """What is neither a step nor compilation is in it too: here the network's first parameters."""
    clocks = more["clocks"]
    assert clocks["wall"] == sorted(clocks["wall"])
    assert clocks["wall"][-1] >= clocks["clocked"] + clocks["slow"]


@pytest.mark.wide
def test_adaptive_points_keep_an_intervals_ends(more: dict[str, Any]) -> None:
    points = more["adaptive interval"]
    assert len(points) == len(set(points)) == 35
    assert (points[0], points[-1]) == (0.0, 10.0)


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_chosen_points_are_different_ones_with_the_ends_among_them(n: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    candidates = Interval(0.0, 1.0).inside(10 * n, generator)
    share = generator.uniform(size=10 * n) ** 8 + 1e-9
    at = chosen(share, Interval(0.0, 1.0).ends(candidates), n, generator)
    assert len(set(at)) == n and 0 in at
    assert n == 1 or 10 * n - 1 in at


@pytest.mark.wide
@pytest.mark.parametrize("how", ["uniform", "adaptive", "graded"])
def test_points_are_redrawn(more: dict[str, Any], how: str) -> None:
    result = more[how]
    assert result["inside"] and result["count"] == 150
    assert not set(map(tuple, result["points"])) & set(map(tuple, result["first"]))


@pytest.mark.wide
def test_adaptive_points_gather_where_the_residual_is(more: dict[str, Any]) -> None:
    adaptive, uniform = (more[how]["mean_square"] for how in ("adaptive", "uniform"))
    assert adaptive > 1.1 * uniform


@pytest.mark.wide
@pytest.mark.parametrize("when", ["first", "points"])
def test_graded_points_gather_at_the_corner(more: dict[str, Any], when: str) -> None:
    """Of 150 points a third is to be within a tenth, of uniform ones a hundredth."""
    graded, uniform = (np.linalg.norm(more[how][when], axis=1) < 0.1 for how in ("graded", "uniform"))
    assert 30 < graded.sum() < 70
    assert uniform.sum() < 10


@pytest.mark.wide
def test_a_loss_that_is_no_number_names_step_and_term(found: dict[str, Any]) -> None:
    assert "at step 1," in found["diverged"] and "y1' - y2" in found["diverged"]
    assert "learning_rate" in found["diverged"]


@pytest.mark.wide
def test_a_later_seed_that_diverges_is_found_where_it_does(found: dict[str, Any]) -> None:
    """Not at the end of the 20 steps that were run together."""
    assert "at step 1," in found["diverged later seed"]


@pytest.mark.wide
@pytest.mark.parametrize("name", ["lbfgs", "ssbroyden", "gauss_newton"])
def test_how_often_the_history_is_written_changes_nothing(more: dict[str, Any], name: str) -> None:
    """Steps after the end change no parameter, and neither they nor their evaluations are counted."""
    each = more["every"][name]
    assert each[0]["steps"] < 1000, "a training that does not end before its last step proves nothing"
    assert len({one["steps"] for one in each}) == len({one["evaluations"] for one in each}) == 1
    assert max(one["loss"] for one in each) <= min(one["loss"] for one in each) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("solver", "units", "wanted"),
    [
        ("ssbroyden", "[1000,1000]", "solver=ssbroyden with 1,005,002 parameters and 72 residuals needs at least "),
        pytest.param(
            "gauss_newton",
            "[1000,1000] dataset.interior=200000",
            "1,005,002 parameters and 400,002 residuals needs ",
            marks=pytest.mark.wide,
        ),
        pytest.param(
            "lbfgs",
            "[2000,2000] solver.remembered=1000 solver.seeds=9",
            "parameters and 72 residuals, 9 seeds at once, needs ",
            marks=pytest.mark.wide,
        ),
    ],
)
def test_what_does_not_fit_into_memory_is_refused(tmp_path: Path, solver: str, units: str, wanted: str) -> None:
    """Before the system kills the process: 16 TB of an inverse Hessian, 6 TB of a Jacobian, 1.2 TB of steps."""
    said = failed(tmp_path, *PINN[:2], "dataset=ode", f"solver={solver}", *f"model.units={units}".split())
    assert said.startswith("out of memory: solver=") and wanted in said
    assert " GiB free; use fewer model.units" in said


class Fit(Function):
    """Values alone, with a corner of which nobody asks."""

    corner = PoissonLShape.corner


CORNERED: Any = Fit()
REFUSED: dict[str, tuple[Own, Any, str, str]] = {
    "hard without": (Adam(conditions="hard"), PoissonLShape(), "fp64", "no hard conditions"),
    "the weight of nothing": (Adam(conditions="hard", condition_weight=2.0), Ode(), "fp64", "condition_weight=2.0"),
    "enrichment without": (Adam(enrichment=True), Ode(), "fp64", "solver.enrichment=true"),
    "graded without a corner": (Adam(graded=True), Ode(), "fp64", "solver.graded=true: Ode names no corner"),
    "graded without equation": (Adam(graded=True), CORNERED, "fp64", "solver.graded=true: Fit has no equation"),
    "new points without equation": (Adam(resample=10), Function(), "fp64", "solver.resample=10"),
    "Gauss-Newton in fp32": (GaussNewton(), Ode(), "fp32", "precision=fp64"),
    "SSBroyden in fp32": (SsBroyden(), Ode(), "fp32", "precision=fp64"),
    "L-BFGS in half": (Lbfgs(), Ode(), "fp16", "fp32 or fp64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_solver_refuses_what_it_or_the_problem_lacks(name: str) -> None:
    solver, problem, precision, words = REFUSED[name]
    with pytest.raises((UserError, Impossible), match=words):
        solver.check(problem, precision)


def test_measurements_are_weighed_beside_hard_conditions() -> None:
    """They stay terms of the loss, so their weight means something; a system without any has none."""
    measured: Any = DiffusionInverse()
    Adam(conditions="hard", condition_weight=10.0).check(measured, "fp64")


def test_points_that_hard_conditions_leave_without_effect_are_noted() -> None:
    problems: list[Any] = [Ode(boundary=7), Burgers(initial=9), Ode(boundary=0), Ode()]
    noted = [unused_points(problem) for problem in problems]
    assert [len(notes) for notes in noted] == [1, 1, 0, 0]
    assert noted[0][0].startswith("dataset.boundary=7 has no effect: with solver.conditions=hard ")
    assert noted[1][0].startswith("dataset.initial=9 has no effect: ")


def test_graded_points_lie_as_many_between_r_and_2r_whatever_r_is() -> None:
    """The uniform half, which adds three quarters of a disk's area, taken off."""
    problem: Any = PoissonLShape()
    points = problem.corner.draw(40_000, np.random.default_rng(0))
    assert len(points) == 40_000 and problem.domain.contains(points).all()
    far = np.linalg.norm(points, axis=1)
    for r in 2.0 ** -np.arange(2, 9):
        uniform = 20_000 * 0.75 * np.pi * (4 - 1) * r**2 / problem.domain.area()
        wanted = uniform + 20_000 * np.log(2) / np.log(1000)
        assert np.sum((far >= r) & (far < 2 * r)) == pytest.approx(wanted, rel=0.1), r


@pytest.mark.parametrize("power", [0.0, -0.5, -4 / 3])
def test_graded_points_change_the_sum_and_not_its_limit(power: float) -> None:
    """The weighted mean square of r^power is that of r^(4/3 + power) over the L-shape, here by a fine grid."""
    problem: Any = PoissonLShape()
    points = problem.corner.draw(200_000, np.random.default_rng(1))
    residual = np.linalg.norm(points, axis=1) ** power
    found = np.mean((problem.corner.weight(points) * residual) ** 2)
    middles = (np.arange(1000) + 0.5) / 500 - 1
    x, y = np.meshgrid(middles, middles)
    wanted = np.mean((x * x + y * y)[(x < 0) | (y < 0)] ** (4 / 3 + power))
    assert found == pytest.approx(wanted, rel=0.01)


def triangle(turn: float = 0.0) -> Polygon:
    """Sides 3, 4 and 5; the right angle, the vertex in the middle, at (2, -1)."""
    x, y = np.array([(0.0, 3.0), (0.0, 0.0), (4.0, 0.0)]).T
    turned = np.stack([np.cos(turn) * x - np.sin(turn) * y + 2, np.sin(turn) * x + np.cos(turn) * y - 1], axis=1)
    return Polygon(tuple((float(x), float(y)) for x, y in turned))


@pytest.mark.parametrize("turn", [0.0, 0.7])
def test_a_corner_knows_its_angle_and_its_reach(turn: float) -> None:
    domain = triangle(turn)
    corner = Corner(domain, domain.vertices[1], order=1.0)
    assert [corner.angle, corner.reach] == pytest.approx([np.pi / 2, 2.4])
    assert [PoissonLShape.corner.angle, PoissonLShape.corner.reach] == pytest.approx([1.5 * np.pi, 1.0])


def test_a_corner_may_be_anywhere() -> None:
    """Half of the points within its reach of 2.4, and the weighted mean square of 1 that of distance^2 / 2.4^2."""
    corner = Corner(triangle(), (2.0, -1.0), order=1.0)
    points = corner.draw(100_000, np.random.default_rng(2))
    assert corner.domain.contains(points).all()
    near = np.linalg.norm(points - np.array([2.0, -1.0]), axis=1) < 2.4e-1
    assert near.mean() == pytest.approx(0.5 * 2 / 3, rel=0.03)
    assert np.mean(corner.weight(points) ** 2) == pytest.approx((16 + 9) / 6 / 2.4**2, rel=0.02)


def test_a_corner_that_is_none() -> None:
    with pytest.raises(ValueError, match="not a vertex"):
        Corner(PoissonLShape.domain, (0.5, 0.0), order=1.0)
    with pytest.raises(ValueError, match="order"):
        Corner(PoissonLShape.domain, (0.0, 0.0), order=float("nan"))
    with pytest.raises(ValueError, match="clockwise"):
        Corner(Polygon(PoissonLShape.domain.vertices[::-1]), (0.0, 0.0), order=1.0)


def test_adaptive_needs_to_know_when() -> None:
    with pytest.raises(ValueError, match="resample"):
        Adam(adaptive=True)


def test_a_saved_network_is_the_same_again(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    layers = tuple((generator.normal(size=(a, b)), generator.normal(size=b)) for a, b in ((2, 5), (5, 1)))
    fitted = Fitted(layers, {"r^(2/3)": 0.4, "r^2 log r": 1.0}, {}, False, True)
    solution.save(tmp_path / "weights.npz", fitted)
    problem: Any = PoissonLShape()
    points = problem.domain.grid(50)
    again = solution.load(tmp_path / "weights.npz")
    np.testing.assert_array_equal(solution.predict(again, problem, points), solution.predict(fitted, problem, points))
    without = solution.predict(Fitted(layers), problem, points)
    assert np.abs(solution.predict(fitted, problem, points) - without).max() > 0.1


@pytest.mark.wide
@pytest.mark.parametrize(("recipe", "reached"), [("function_best", 2e-5), ("ode_best", 1e-8)])
def test_a_best_recipe_as_it_ships(tmp_path: Path, recipe: str, reached: float) -> None:
    run = done(tmp_path, f"experiment={recipe}", "tracking=none")
    scalars = json.loads((run / "result.json").read_text())["scalars"]
    assert scalars["test/relative_l2"] <= reached
    assert scalars["residual_evaluations"] < 20_000 * 37


@pytest.mark.wide
def test_the_coefficient_of_the_l_shape_to_five_digits(tmp_path: Path) -> None:
    """As it ships; 0.4019310310137 by the method of particular solutions."""
    run = done(tmp_path, "experiment=poisson_best", "tracking=none")
    scalars = json.loads((run / "result.json").read_text())["scalars"]
    assert scalars["test/relative_l2"] <= 1e-6
    assert scalars["enrichment/r^(2/3)"] == pytest.approx(0.40193, abs=5e-6)


def test_the_command_line_refuses_kindly(tmp_path: Path) -> None:
    result = refused(tmp_path, *PINN, "dataset=ode", "solver=gauss_newton", "precision=fp32")
    assert "precision=fp64" in result
    result = refused(tmp_path, "stage=pinn", "backend=torch", "dataset=ode", "solver=ssbroyden", "precision=fp64")
    assert "backend=jax" in result


@pytest.mark.gpu
@pytest.mark.skipif(not gpus(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize(("recipe", "reached"), [("function_best", 2e-5), ("ode_best", 1e-8), ("poisson_best", 1e-6)])
def test_a_best_recipe_on_a_gpu(tmp_path: Path, recipe: str, reached: float) -> None:
    run = done(tmp_path, f"experiment={recipe}", "device=gpu", "tracking=none", CUDA_VISIBLE_DEVICES="0")
    assert json.loads((run / "receipt.json").read_text())["peak_memory"]["device_bytes"] > 0
    assert json.loads((run / "result.json").read_text())["scalars"]["test/relative_l2"] <= reached
