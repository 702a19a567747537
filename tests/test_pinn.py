"""stage=pinn through DeepXDE: short trainings, what they leave, what is refused, and the look at the precision."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import own_problems
import pytest
import yaml
from command import done, pipeline, refused, runs
from hypothesis import given
from hypothesis import strategies as st

from pipeline import experiment as experiments
from pipeline.errors import Impossible, UserError
from pipeline.models.fnn import Fnn
from pipeline.pinn import guard, jets, rounding, solution
from pipeline.pinn.at_points import read_points
from pipeline.pinn.domain import Interval, Polygon, rectangle
from pipeline.pinn.errors import points_sha256
from pipeline.pinn.fits import check_fits
from pipeline.pinn.problems.allen_cahn import AllenCahn
from pipeline.pinn.problems.burgers import Burgers
from pipeline.pinn.problems.diffusion_inverse import DiffusionInverse
from pipeline.pinn.problems.function import Function
from pipeline.pinn.problems.ode import Ode
from pipeline.pinn.problems.poisson_lshape import PoissonLShape
from pipeline.pinn.solvers import deepxde_adam, deepxde_watch
from pipeline.pinn.solvers.deepxde import Deepxde
from pipeline.pinn.solvers.deepxde_adam import DeepxdeAdam
from pipeline.pinn.solvers.gauss_newton import GaussNewton
from pipeline.runs.records import read_config, read_metrics
from pipeline.runs.result import read_result

CONF = Path(__file__).parents[1] / "conf"
OWN = {"PIPELINE_MODULES": "own_problems", "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{Path(__file__).parent}"}
PINN = ("stage=pinn", "tracking=none")
ODE = (*PINN, "dataset=ode", "model.units=[20]", "precision=fp64", "solver.steps=300")
ON_BACKENDS = ("torch", *(pytest.param(name, marks=pytest.mark.wide) for name in ("tensorflow", "jax")))


AROUND_TORCH = """
from torch.overrides import _get_current_function_mode_stack as around
from pipeline.backends import Torch
from pipeline.machine.device import Place
from pipeline.pinn.solvers.deepxde_start import started

with started(Torch(threads=1), "fp32", 0, Place("cpu"), 1e3):
    while_training = len(around())
print(while_training, len(around()))
"""


def figures(run: Path) -> dict[str, float]:
    return json.loads((run / "result.json").read_text())["scalars"]


def receipt(run: Path) -> dict[str, Any]:
    return json.loads((run / "receipt.json").read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pinn")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def ode(place: Path, home: Path) -> Path:
    return done(place, *ODE, HOME=str(home))


@pytest.mark.usefixtures("ode")
def test_nothing_is_written_into_the_home(home: Path) -> None:
    assert not (home / ".deepxde").exists()


def test_what_a_run_leaves(ode: Path) -> None:
    for name in ("loss_history", "solution", "training_points"):
        assert (ode / "artifacts" / "figures" / f"{name}.png").stat().st_size > 10_000
    with (ode / "artifacts" / "tables" / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "100", "200", "300"]
    clocks = [(float(row["wall_s"]), float(row["training_s"])) for row in rows]
    assert clocks[0][0] > clocks[0][1] == 0, "the wall clock has what DeepXDE does before its first step"
    assert clocks == sorted(clocks)
    assert float(rows[-1]["loss"]) == pytest.approx(figures(ode)["train/loss"])
    assert float(rows[-1]["relative_l2"]) == pytest.approx(figures(ode)["test/relative_l2"], rel=0.05)
    records = [record.metrics for record in read_metrics(ode)]
    terms = ["train/y1' - y2", "train/y2' + y1", "train/y1(0)", "train/y2(0)"]
    assert all(set(terms) < set(record) for record in records)
    for record in records:
        assert record["train/loss"] == pytest.approx(sum(record[term] for term in terms))


def test_the_receipt_of_a_run(ode: Path) -> None:
    found = receipt(ode)
    assert found["precision"]["observed"] == {"parameters": "float64", "loss": "float64"}
    assert found["precision"]["guard"]["relative_errors"].keys() >= {"value", "first", "residual y1' - y2"}
    assert found["precision"]["guard"]["warnings"] == []
    assert found["precision"]["guard"]["network"] == "a Glorot network of the run's shape, not the solver's start"
    floor = found["precision"]["trained"]["loss_floor"]
    assert 0 < floor < 1e-20 * figures(ode)["train/loss"]
    assert figures(ode)["train/loss_floor"] == floor
    assert found["versions"]["deepxde"][0].isdigit()
    assert found["parameters"] == 20 + 20 + 40 + 2
    assert len(found["points_sha256"]) == 64


def test_the_error_is_that_of_the_saved_network(ode: Path, place: Path) -> None:
    """Predicted by stage=predict at the same grid, against sine and cosine."""
    grid = np.linspace(0, 10, 10_000)
    np.save(place / "grid.npy", grid)
    run = done(place, "stage=predict", f"run={ode.name}", "stage.points=grid.npy", "tracking=none")
    kept = read_result(run)
    assert kept is not None and ("run", ode.name) in kept.table
    with (run / "artifacts" / "predictions.csv").open() as file:
        head, *rows = list(csv.reader(file))
    assert head == ["t", "u1", "u2"]
    found = np.array(rows, float)[:, 1:]
    exact = np.stack([np.sin(grid), np.cos(grid)], axis=1)
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    assert error == pytest.approx(figures(ode)["test/relative_l2"], rel=1e-12)
    assert float(np.abs(found - exact).max()) == pytest.approx(figures(ode)["test/max_error"], rel=1e-12)


@pytest.mark.parametrize(("group", "name"), [("device", "gpu"), ("precision", "tf32")])
def test_points_need_nothing_that_the_training_had(ode: Path, tmp_path: Path, group: str, name: str) -> None:
    """A run made on a GPU predicts where there is none: in NumPy, as any other."""
    shutil.copytree(ode, tmp_path / "saved")
    config = read_config(ode)
    config[group]["name"] = name
    (tmp_path / "saved" / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "p.csv").write_text("exact,t\n0,1\n")
    run = done(tmp_path, "stage=predict", "run=saved", "stage.points=p.csv", "tracking=none")
    found, result = receipt(run), read_result(run)
    assert result is not None
    assert "stage.points=p.csv: not read, since the model does not take them: exact" in result.notes
    assert found[group]["requested"] == name
    assert (found["device"]["effective"], found["precision"]["effective"]) == ("cpu", "fp64")
    assert found["backend"] == "numpy"


@pytest.mark.wide
def test_nothing_stands_between_deepxde_and_torch(tmp_path: Path) -> None:
    """While DeepXDE trains on a CPU no function of Python is called around torch's own, and none is left behind."""
    (tmp_path / "asked.py").write_text(AROUND_TORCH)
    result = subprocess.run([sys.executable, "asked.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout.splitlines()[-1:] == ["0 0"], result.stderr


@pytest.mark.wide
def test_the_same_seed_gives_the_same_network(ode: Path, place: Path, home: Path) -> None:
    again = done(place, *ODE, HOME=str(home))
    assert receipt(again)["weights_sha256"] == receipt(ode)["weights_sha256"]
    other = done(place, *ODE, "seed=1", HOME=str(home))
    assert receipt(other)["weights_sha256"] != receipt(ode)["weights_sha256"]


@pytest.mark.parametrize("backend", ON_BACKENDS)
def test_a_function_is_learnt(place: Path, backend: str) -> None:
    run = done(place, *PINN, "dataset=function", f"backend={backend}", "solver.steps=2000")
    assert figures(run)["test/relative_l2"] < 0.05
    assert receipt(run)["precision"]["observed"] == {"parameters": "float32", "loss": "float32"}


@pytest.mark.parametrize("backend", ON_BACKENDS)
@pytest.mark.wide
def test_an_l_shape_trains_in_float32(place: Path, backend: str) -> None:
    """DeepXDE's polygon gives float64 points, on which torch's float32 network would fail."""
    run = done(
        place,
        *PINN,
        "dataset=poisson_lshape",
        "solver=deepxde_adam",
        f"backend={backend}",
        "solver.steps=20",
        "solver.every=10",
    )
    rows = [record.metrics["train/loss"] for record in read_metrics(run)]
    assert rows[-1] < rows[0]


@pytest.mark.wide
def test_a_polygons_points_are_the_seeds(place: Path) -> None:
    """DeepXDE's seed does not reach them."""
    words = (*PINN, "dataset=poisson_lshape", "solver=deepxde_adam", "solver.steps=1", "model.units=[2]")
    hashes = [receipt(done(place, *words, *more))["points_sha256"] for more in ((), ("solver.every=2",), ("seed=1",))]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.wide
@pytest.mark.parametrize("backend", ON_BACKENDS)
def test_a_recipes_hard_conditions_hold(place: Path, backend: str) -> None:
    """Allen and Cahn's source has them; the saved network says the same at the start and at an end."""
    words = ("dataset=allen_cahn", "solver=deepxde_adam", "solver.steps=2", "dataset.interior=50", "model.units=[4]")
    run = done(place, *PINN, *words, f"backend={backend}", "precision=fp64")
    assert {name for record in read_metrics(run) for name in record.metrics if name.startswith("train/")} == {
        "train/loss",
        "train/u_t - 0.001 u_xx - 5 (u - u^3)",
    }
    problem: Any = AllenCahn()
    fitted = solution.load(run / "artifacts" / "model" / "weights.npz")
    points: Any = np.array([[0.5, 0.0], [-1.0, 0.7], [0.0, 0.5]])
    found = solution.predict(fitted, problem, points)[:, 0]
    assert found[:2] == pytest.approx([0.0, -1.0], abs=1e-12) and abs(found[2]) > 1e-3


@pytest.mark.parametrize("backend", ["torch", pytest.param("tensorflow", marks=pytest.mark.wide)])
@pytest.mark.wide
def test_lbfgs_goes_on_from_adam(place: Path, backend: str) -> None:
    words = (
        "dataset=function",
        f"backend={backend}",
        "solver=deepxde_adam_lbfgs",
        "precision=fp64",
        "solver.steps=100",
    )
    run = done(place, *PINN, *words, "solver.lbfgs_steps=150")
    after = {record.step: record.metrics["train/loss"] for record in read_metrics(run)}
    assert figures(run)["train/loss"] < 0.1 * after[100]
    assert 100 < figures(run)["steps"] <= 250
    assert figures(run)["residual_evaluations"] >= 16 * figures(run)["steps"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        pytest.param(("dataset.interior=2", "solver.lbfgs_steps=300"), 50, marks=pytest.mark.wide),
        pytest.param(("solver.lbfgs_steps=1",), 2, marks=pytest.mark.wide),
        pytest.param(("solver.lbfgs_steps=400",), 401, marks=pytest.mark.wide),
    ],
    ids=["nothing to gain", "one", "more than a block"],
)
def test_lbfgs_takes_no_more_steps_than_it_may(place: Path, words: tuple[str, ...], wanted: int) -> None:
    """DeepXDE's own would go past them, tell nothing of one step, and never end where there is nothing to gain."""
    run = done(place, *PINN, "solver=deepxde_adam_lbfgs", "precision=fp64", "model.units=[5]", "solver.steps=1", *words)
    assert figures(run)["steps"] <= wanted
    if "dataset.interior=2" not in words:
        assert figures(run)["steps"] == wanted
    rows = [record.step for record in read_metrics(run)]
    assert rows[-1] == figures(run)["steps"]
    result = read_result(run)
    assert result is not None
    ended = any(one.startswith("L-BFGS ended after ") for one in result.notes)
    assert ended == ("dataset.interior=2" in words)


def test_what_deepxde_looks_at_is_not_part_of_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its losses at the test points belong to no step, as ours do not."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(deepxde_watch, "fitted_of", lambda *_: now.__setitem__(0, now[0] + 1))  # waits for the steps
    watch = object.__new__(deepxde_watch.Watch)
    watch.learner, watch.backend, watch.unknowns, watch.hard = None, "torch", {}, False
    watch.seconds, watch.resumed = 0.0, None
    look = watch._untimed(lambda: now.__setitem__(0, now[0] + 10))
    look()
    assert (watch.seconds, watch.resumed) == (0, None)
    watch.resumed = now[0]
    look()
    assert (watch.seconds, watch.resumed) == (1, now[0])


def test_the_default_is_the_recipe_of_the_problems_source() -> None:
    problems: list[Any] = [Function(), Ode(), DiffusionInverse(), PoissonLShape(), Burgers(), AllenCahn()]
    assert [Deepxde().lbfgs_steps_for(problem) for problem in problems] == [0, 0, 0, 15_000, 15_000, 15_000]
    assert [Deepxde().hard_for(problem) for problem in problems] == [False] * 5 + [True]
    assert yaml.safe_load((CONF / "stage" / "pinn.yaml").read_text())["defaults"][-1] == {"override /solver": "deepxde"}


@pytest.mark.wide
def test_values_are_fitted_where_they_were_measured(place: Path) -> None:
    """DeepXDE's Function takes equispaced points, whatever the condition says."""
    run = done(place, *PINN, "dataset._target_=own_problems.Scattered", "precision=fp64", "solver.steps=1", **OWN)
    points = Interval(0.0, 1.0).grid(20) ** 2
    assert receipt(run)["points_sha256"] == points_sha256({"measured": points})


@pytest.mark.wide
def test_seeds_make_a_grid_that_runs_once(place: Path) -> None:
    folder = place / "grid"
    folder.mkdir()
    words = ("-m", *PINN, "dataset=function", "solver.steps=20", "solver.every=10", "seed=0,1")
    assert pipeline(folder, *words).returncode == 0
    cells = [run for run in runs(folder) if (run / "artifacts" / "model").exists()]
    assert len({receipt(run)["weights_sha256"] for run in cells}) == 2
    before = len(runs(folder))
    assert pipeline(folder, *words).returncode == 0
    assert len(runs(folder)) == before


@pytest.mark.wide
def test_a_problem_is_one_file(place: Path) -> None:
    """Nothing but its config names it; the residual uses every function that `math` offers."""
    (place / "conf" / "dataset").mkdir(parents=True)
    (place / "conf" / "dataset" / "heat.yaml").write_text("_target_: own_problems.Heat\n")
    run = done(place, *PINN, "--config-dir", "conf", "dataset=heat", "precision=fp64", **OWN)
    rows = [record.metrics["train/loss"] for record in read_metrics(run)]
    assert rows[-1] < 0.1 * rows[0]


@pytest.mark.wide
@pytest.mark.parametrize("backend", ON_BACKENDS)
def test_a_coefficient_is_found(place: Path, backend: str) -> None:
    folder = place / backend
    (folder / "conf" / "dataset").mkdir(parents=True)
    (folder / "conf" / "dataset" / "decay.yaml").write_text("_target_: own_problems.Decay\n")
    words = ("--config-dir", "conf", "dataset=decay", "precision=fp64", "solver.learning_rate=0.01")
    run = done(folder, *PINN, *words, f"backend={backend}", **OWN)
    assert figures(run)["unknown/k"] == pytest.approx(2, abs=0.1)
    assert json.loads((run / "artifacts" / "model" / "card.json").read_text())["unknowns"]["k"] != 1.0


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    words = (*ODE[:1], *ODE[2:4], "precision=fp32", "solver.learning_rate=1e30", "solver.steps=1000", "solver.every=5")
    result = pipeline(tmp_path, *words, "tracking=none")
    assert result.returncode == 1
    assert "error: the loss became " in result.stderr
    assert " by step 5, first in the term " in result.stderr


def test_polygons_of_deepxde_need_a_numpy_that_has_their_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepxde_adam, "version", lambda _: "2.5.2")
    with pytest.raises(Impossible, match=r"NumPy 2\.5 and newer lack, and NumPy 2\.5\.2 is installed; pip install"):
        DeepxdeAdam().check(PoissonLShape(), "fp32")
    DeepxdeAdam().check(Ode(), "fp32")
    monkeypatch.setattr(deepxde_adam, "version", lambda _: "2.4.6")
    DeepxdeAdam().check(PoissonLShape(), "fp32")


REFUSED = {
    "dataset=mnist": "dataset=mnist with stage=pinn: not a problem; this stage solves problems such as dataset=ode",
    "model=mlp": "model=mlp with stage=pinn: not a network for problems; model=fnn is one",
    "dataset=mnist model=mlp": "dataset=mnist with stage=pinn: not a problem; use dataset=ode model=fnn",
    "solver=none": "solver=none with stage=pinn: solves nothing; choose one, such as solver=deepxde",
    "model=mlp loss=hinge optimizer=sgd": "model=mlp with stage=pinn: not a network for problems; use model=fnn "
    "without loss, optimizer",
    "optimizer=sgd": "optimizer with stage=pinn: a problem has no batches and no classes; leave it out: solver= and "
    "its settings say how it is trained",
    "optimizer=sgd loss=mse loader=threads": "optimizer, loss, loader with stage=pinn: a problem has no batches and no "
    "classes; leave them out: solver= and its settings say how it is trained",
    "training.epochs=3": "training.epochs with stage=pinn: a problem has no batches and no classes; ...",
    "loss=mse": "loss with stage=pinn: ...",
    "loader=threads": "loader with stage=pinn: ...",
    "profiler=torch": "profiler=torch with stage=pinn: profilers measure trainings on datasets only",
    "backend.compile=true": "backend.compile=true with stage=pinn: it would be ignored; leave it out",
    "device.placement_log=true": "device.placement_log=true with stage=pinn: ...",
    "precision=fp16": "precision=fp16 with backend=torch and solver=deepxde: the 1e-8 in Adam's denominator is ...",
    "precision=bf16": "precision=bf16 with solver=deepxde: DeepXDE uses one dtype for everything and no loss scaling; "
    "use precision=fp32 or precision=fp64",
    "precision=mixed": "precision=mixed with solver=deepxde: ...",
    "stage.grid=99": "stage.grid=99: should be greater than or equal to 100",
    "model.units=[0]": "model.units.0=0: should be greater than 0",
    "model.activation=relu": "model.activation='relu': should be 'tanh'",
    "dataset.interior=0": "dataset.interior=0: should be greater than 0",
    "dataset=ode dataset.boundary=0": "dataset.boundary=0: no point for the condition 'y1(0)' of ode; give more",
    "dataset=lorenz": "dataset=lorenz: no such choice; choose from ...",
    "solver=deepxde_adam_lbfgs backend=jax": "solver=deepxde_adam_lbfgs with backend=jax: it runs on torch, "
    "tensorflow; DeepXDE has no L-BFGS on JAX",
    "dataset=poisson_lshape backend=jax": "backend=jax with solver=deepxde: DeepXDE has no L-BFGS on JAX, and "
    "the recipe of poisson_lshape needs it; use backend=torch, or solver=deepxde_adam",
    "dataset=burgers backend=jax": "backend=jax with solver=deepxde: DeepXDE has no L-BFGS on JAX, and the recipe ...",
    "dataset=burgers dataset.boundary=0": "dataset.boundary=0 and dataset.initial=160: no point for the condition 'u "
    "at the ends' of burgers; give more",
    "dataset=ode solver=adam solver.steps=100 solver.resample=100": "solver.resample=100: no step of "
    "solver.steps=100 is left for new points; give less",
    "solver=gauss_newton backend=torch": "solver=gauss_newton with backend=torch: it runs on jax; use backend=jax",
    "solver=gauss_newton precision=fp32": "precision=fp32 with solver=gauss_newton: it computes in fp64; use ...",
    "dataset=function dataset.boundary=4": "dataset.boundary: no such key...",
    "solver=gauss_newton solver.start=features": "solver.start=features: spreads the neurons over coordinates in ...",
    "solver=gauss_newton solver.damping=1e-15": "solver.damping=1e-15: has to lie within solver.least_damping=1e-14 "
    "and 1e+08",
    "solver=gauss_newton solver.damping=1e9": "solver.damping=1000000000.0: has to lie within ...",
    "dataset=ode solver=adam solver.conditions=hard solver.condition_weight=10.0": "solver.condition_weight=10.0 with "
    "solver.conditions=hard: no condition of Ode is left as a term of the loss; leave it out",
    "solver.steps=0": "solver.steps=0: should be greater than 0",
    "solver.learning_rate=-1": "solver.learning_rate=-1: should be greater than 0",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, words: str) -> None:
    wanted = REFUSED[words]
    said = refused(tmp_path, "stage=pinn", *words.split())
    assert said.startswith(wanted.removesuffix("...")) if wanted.endswith("...") else said == wanted


OUTSIDE = {
    "dataset=ode": "dataset=ode with stage=classifier: is a problem; use stage=pinn model=fnn, or another dataset",
    "model=fnn": "model=fnn with stage=classifier: is a network for problems; use model=mlp, or stage=pinn dataset=ode",
    "model=fnn solver=adam": (
        "model=fnn with stage=classifier: is a network for problems; use model=mlp solver=none, or stage=pinn "
        "dataset=ode"
    ),
    "model=fnn dataset=ode": "dataset=ode with stage=classifier: is a problem; use stage=pinn, or another dataset",
    "solver=deepxde_adam": (
        "solver=deepxde_adam with stage=classifier: solves problems; use solver=none, or stage=pinn dataset=ode "
        "model=fnn"
    ),
    "stage=matmul solver=adam": "solver=adam with stage=matmul: has no effect there; leave out solver",
    "dataset=ode loss=hinge optimizer=sgd": "dataset=ode with stage=classifier: is a problem; use stage=pinn model=fnn "
    "without loss, optimizer, or another dataset",
    "stage=amp dataset=ode": "dataset=ode with stage=amp: is a problem; use stage=pinn model=fnn, or another dataset",
    "stage=devices solver=adam": ("solver=adam with stage=devices: has no effect there; leave out solver"),
}


@pytest.mark.parametrize("words", OUTSIDE)
def test_problems_are_for_this_stage_alone(tmp_path: Path, words: str) -> None:
    assert refused(tmp_path, *words.split()) == OUTSIDE[words]


POINTS = {
    "1.0,2.0\n": "holds an array of shape (1, 2); each row is a point (t)",
    "t\n11\n": "1 of 1 points lie outside the domain, where the network was not trained; the first in row 1: 11",
    "1\nnan\n": "row 2 holds numbers that are not finite: nan",
    "t\n": "holds no points",
    "time\n1\n": "no readable points (its columns are time; a point is (t))",
    "O.5\n1\n": "row 1 has 'O.5', which is not a number",
    "nan\n": "row 1 holds numbers that are not finite: nan",
    f"{'1' * 200_000}\n": "no readable points (field larger than field limit (131072))",
    "1\nx\n": "row 2 has 'x', which is not a number",
}


@pytest.mark.parametrize("text", POINTS)
def test_points_that_do_not_fit_are_refused(ode: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "points.csv").write_text(text)
    said = refused(tmp_path, "stage=predict", f"run={ode}", "stage.points=points.csv")
    assert said.startswith("stage.points=points.csv: ")
    assert POINTS[text].split(";")[0] in said


@pytest.mark.parametrize(
    "array", [np.array([1j]), np.array(["1"]), np.zeros(2, [("t", float)])], ids=["complex", "text", "names"]
)
def test_an_array_of_no_points_is_refused(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "points.npy", array)
    problem: Any = Ode()
    with pytest.raises(UserError, match=r"points\.npy: no readable points \(Cannot cast array data from dtype"):
        read_points(str(tmp_path / "points.npy"), problem)


def test_columns_go_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("y, x\n0.5,-1\n")
    problem: Any = PoissonLShape()
    assert read_points(str(tmp_path / "points.csv"), problem).tolist() == [[-1.0, 0.5]]


def test_points_as_a_spreadsheet_writes_them(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("1\r\n2\r\n", encoding="utf-8-sig")
    problem: Any = Ode()
    assert read_points(str(tmp_path / "points.csv"), problem).tolist() == [[1.0], [2.0]]


def test_a_solved_run_takes_points_and_not_images(ode: Path, tmp_path: Path) -> None:
    words = ("stage=predict", f"run={ode}")
    assert refused(tmp_path, *words).startswith("stage.points=null: name a .npy or .csv file")
    assert refused(tmp_path, *words, "stage.points=no.csv") == "stage.points=no.csv: no such file"
    assert "use stage.points=points.csv" in refused(tmp_path, *words, "stage.images=[a.png]")
    assert "its errors are in its result.json" in refused(tmp_path, "stage=evaluate", f"run={ode}")
    (tmp_path / "p.csv").write_text("1\n")
    said = refused(tmp_path, *words, "stage.points=p.csv", "precision=fp32")
    assert said.startswith("precision with stage.points: points are predicted in NumPy")


WRONG = {
    "TooManyResiduals": "residuals() gives 2; `equations` names 1",
    "NoSuchCoordinate": "residuals() cannot be computed (IndexError: ",
    "FlatResidual": "the residual 'u_t - u_xx' has the shape (16,); it has to be (16, 1)",
    "NoSuchFunction": "residuals() cannot be computed (AttributeError: no math.cosh; every backend has sin, cos, exp, ",
    "WrongBoundary": "the domain's boundary cannot be computed (NotImplementedError: no boundary, in on_boundary (",
    "WrongDomain": "the domain cannot be computed (IndexError: ",
    "WrongConditions": "conditions() cannot be computed (FileNotFoundError: ",
    "FewHard": "hard() has the shape (2, 16, 1); it has to be (2, 16, 2)",
    "WrongHard": "hard() cannot be computed (AttributeError: ",
    "UnnamedEnrichment": "enrichment() gives 1; `enriched` names 2",
    "InfiniteEnrichment": "enrichment() is not finite inside the domain",
    "NoCorner": "the corner cannot be computed (AttributeError: ",
    "ForeignCorner": "the corner is one of another domain",
    "PointOutside": "the condition 'measured' has a point outside the domain: [1.5]",
    "NoPoints": "the condition 'measured' has no points",
    "NoSuchOutput": "the condition 'measured' is on output 1; there are 1, from 0",
    "NoConditions": "has no conditions, ",
    "TakenName": "a term is named 'inside', which is the name of something else; give it another",
    "NoReturn": "residuals() gives NoneType, not a list; is its `return` missing?",
    "NumPysTanh": "residuals() cannot be computed (TypeError: NumPy's tanh works on no other backend; use math.tanh, "
    "in residuals (",
    "NumPysSum": "residuals() cannot be computed (TypeError: NumPy's sum works on no other backend; use one of ",
    "HardIsNone": "hard() does not meet the condition 'y(0)': it is 0 at [0.] and should be 1",
    "SmallReferenceIsOff": "reference() does not meet the condition 'y(0)': it is 0.0011 at [0.] and should be 0.001",
    "ReferenceIsOff": "reference() does not meet the condition 'y(0)': it is 2 at [0.] and should be 1",
    "NoInside": "interior=0 and boundary=0 points; give 1 and 0 or more",
    "NotFinite": "reference() is not finite inside the domain",
    "Vanishing": "reference() is 0 at each point, so that a relative error is not defined; add a function of the "
    "coordinates to the solution",
    "WrongReference": "reference() has the shape (17,); it has to be (17, 1)",
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_problem_that_does_not_fit_together_is_refused(name: str) -> None:
    with pytest.raises(UserError) as caught:
        check_fits(getattr(own_problems, name)())
    assert str(caught.value).startswith(f"dataset={name.lower()}: {WRONG[name]}")


DOMAINS: dict[str, tuple[Any, ...]] = {
    "Interval(1.0, 1.0): low has to be less than high, both finite": (Interval, 1.0, 1.0),
    "Interval(2.0, 1.0): low has to be less than high, both finite": (Interval, 2.0, 1.0),
    "Interval(0.0, nan): low has to be less than high, both finite": (Interval, 0.0, float("nan")),
    "Polygon(((0, 0), (1, 1))): needs three vertices or more": (Polygon, ((0, 0), (1, 1))),
    "Polygon(((0, 0), (1, 1), (3, 3))): has no area": (Polygon, ((0, 0), (1, 1), (3, 3))),
    "Polygon(((0, 0), (1, 0), (2, 0))): has no area": (Polygon, ((0, 0), (1, 0), (2, 0))),
    "Polygon(((0, 0), (0, 0), (1, 0), (1, 0))): has no area": (rectangle, (0, 1), (0, 0)),
}


@pytest.mark.parametrize("said", DOMAINS)
def test_a_domain_without_an_inside_is_refused(said: str) -> None:
    make, *arguments = DOMAINS[said]
    with pytest.raises(ValueError, match=r"^(Interval|Polygon)\(") as caught:
        make(*arguments)
    if make is not rectangle:
        assert str(caught.value) == said
    assert str(caught.value).endswith(said.partition(": ")[2])


def test_a_problem_whose_domain_is_wrong_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from pipeline.pinn.domain import Interval\n\nWRONG = Interval(1.0, 0.0)\n")
    said = refused(
        tmp_path,
        *PINN,
        "dataset._target_=mine.Mine",
        PIPELINE_MODULES="mine",
        PYTHONPATH=str(tmp_path),
    )
    assert said.endswith(
        "(ValueError: Interval(1.0, 0.0): low has to be less than high, both finite, in <module> (mine.py, line 3))"
    )


def test_hard_conditions_need_no_points_on_the_boundary() -> None:
    problem: Any = Ode(boundary=0)
    with pytest.raises(
        UserError, match=r"^dataset\.boundary=0: no point for the condition 'y1\(0\)' of ode; give more"
    ):
        check_fits(problem)
    check_fits(problem, hard=True)


@pytest.mark.parametrize("problem", [Function(), Ode(), PoissonLShape(), own_problems.Decay(), own_problems.Heat()])
def test_a_problem_that_fits_passes(problem: Any) -> None:
    check_fits(problem)


@given(st.floats(min_value=-(2.0**100), max_value=2.0**100, width=32))
def test_tf32_keeps_ten_bits(value: float) -> None:
    """To the nearest number with a mantissa of 10 bits, a tie to the even one."""
    mantissa, exponent = np.frexp(np.float64(value))
    nearest = np.ldexp(np.round(mantissa * 2**11) / 2**11, exponent)
    found = float(guard.tf32(np.array([value], np.float32))[0])
    assert found == nearest or abs(value) < 1e-37  # below, float32 itself has fewer bits


@pytest.mark.parametrize("problem", [Function(), Ode(), PoissonLShape()])
def test_the_guard_sees_each_formats_rounding(problem: Any) -> None:
    """Unit roundoff: 1e-16 in float64, 6e-8 in float32, 5e-4 in TF32 and float16."""
    layers = Fnn().of(problem).initial(problem, seed=0)
    worst = {}
    for precision in ("fp64", "fp32", "tf32", "fp16"):
        found = guard.measure(problem, layers, precision, hard=False, line_search=False, seed=0)
        worst[precision] = max(found.errors.values())
        assert bool(found.warnings) == (precision in ("tf32", "fp16"))
    assert worst["fp64"] == 0
    assert 1e-8 < worst["fp32"] < 1e-5
    assert 1e-5 < worst["tf32"] < 0.1
    assert 1e-4 < worst["fp16"] < 0.5


def test_the_guard_ranks_no_number_highest() -> None:
    """Wherever it stands: a NaN is neither more nor less than anything."""
    result = guard.warnings("fp32", {"value": 1e-7, "first": float("nan"), "second": 1e-3}, line_search=False)
    assert result == [
        "precision=fp32: an error of nan in the first derivatives of a Glorot network; use precision=fp64"
    ]


def test_the_guard_warns_of_a_line_search_below_float64() -> None:
    problem: Any = Function()
    layers = Fnn().of(problem).initial(problem, seed=0)
    found = guard.measure(problem, layers, "fp32", hard=False, line_search=True, seed=0)
    (warning,) = found.warnings
    assert "precision=fp32 with L-BFGS: its line search takes rounding for convergence" in warning


def solved(problem: Any, seed: int = 0) -> solution.Solution:
    """One hidden layer, its last layer by least squares in float64: residuals far below the rounding of float32."""
    generator = np.random.default_rng(seed)
    kernel, bias = generator.uniform(-1, 1, (1, 60)), generator.uniform(-1, 1, 60)
    points = {one.name: one.points for one in problem.conditions()}
    (x,), (wanted,) = points.values(), [one.values(one.points) for one in problem.conditions()]
    hidden = np.hstack([np.tanh(x @ kernel + bias), np.ones((len(x), 1))])
    last = np.linalg.lstsq(hidden, wanted, rcond=1e-12)[0]
    fitted = solution.Fitted(((kernel, bias), (last[:-1, None], last[-1:])))
    return of_layers(problem, fitted, points)


def of_layers(problem: Any, fitted: solution.Fitted, points: Any) -> solution.Solution:
    """As if it had been trained: its loss is that of float64."""
    residual = [rounding.residuals(problem, fitted, name, x, "float64") for name, x in points.items()]
    loss = float(sum(np.mean(r**2, axis=0).sum() for r in residual))
    history = (solution.Moment(1, 0.0, loss, {}, fitted),)
    return solution.Solution(fitted, points, history, 1, 0.0, None, 1, 1, {}, {})


def test_a_trained_network_shows_what_rounding_leaves() -> None:
    """The floor of float32 is the loss that a plain float32 evaluation has where float64 has next to none."""
    problem: Any = Function()
    found = solved(problem)
    (x,) = found.points.values()
    (kernel, bias), (last, end) = ([a.astype(np.float32) for a in layer] for layer in found.fitted.layers)
    plain = np.tanh(x.astype(np.float32) @ kernel + bias) @ last + end - problem.reference(x).astype(np.float32)
    wanted = float(np.mean(plain.astype(np.float64) ** 2))
    assert found.history[-1].loss < 1e-4 * wanted, "a network that is not solved proves nothing"
    floor = rounding.measure(problem, found, "fp32", GaussNewton())
    assert floor.loss is not None and wanted / 30 < floor.loss < 30 * wanted
    (warning,) = floor.warnings
    assert warning.startswith("precision=fp32: rounding alone puts ") and warning.endswith("; use precision=fp64")
    assert rounding.measure(problem, found, "fp64", GaussNewton()).warnings == ()


@pytest.mark.parametrize("problem", [Function(), Ode(), PoissonLShape(interior=60, boundary=20)])
def test_a_fresh_network_is_far_above_the_floor(problem: Any) -> None:
    """Where float32 is always fine, and each precision's floor is the square of its rounding."""
    layers = Fnn().of(problem).initial(problem, seed=0)
    points = {one.name: one.points for one in problem.conditions() if one.points is not None}
    if problem.equations:
        points["inside"] = problem.domain.inside(50, np.random.default_rng(0))
    found = of_layers(problem, solution.Fitted(layers), points)
    floors = {name: rounding.measure(problem, found, name, GaussNewton()) for name in ("fp64", "fp32", "tf32")}
    size = found.history[-1].loss
    assert 1e-36 < floors["fp64"].loss / size < 1e-28  # type: ignore[operator]
    assert 1e-18 < floors["fp32"].loss / size < 1e-10  # type: ignore[operator]
    assert 1e-9 < floors["tf32"].loss / size < 1e-2  # type: ignore[operator]
    assert floors["fp64"].warnings == floors["fp32"].warnings == ()


def multiply_adds(monkeypatch: pytest.MonkeyPatch, dtype: str) -> list[int]:
    """Those of each network that is evaluated in `dtype` from now on."""
    counted, network = [], jets.network

    def counting(x: jets.Jet, layers: Any) -> jets.Jet:
        if x.parts.dtype == dtype:
            counted.append(len(x.parts) * x.parts.shape[1] * sum(kernel.size for kernel, _ in layers))
        return network(x, layers)

    monkeypatch.setattr(jets, "network", counting)
    return counted


@pytest.mark.parametrize(("precision", "dtype"), [("fp64", "longdouble"), ("fp16", "float16")])
def test_the_floor_of_a_wide_network_takes_bounded_work(
    precision: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy multiplies these dtypes without BLAS; 256 points of this network would be 200 million multiply-adds."""
    problem: Any = PoissonLShape()
    layers = Fnn(units=(256,) * 4).initial(problem, seed=0)
    generator = np.random.default_rng(0)
    points = {"inside": problem.domain.inside(400, generator)}
    points["u on the boundary"] = problem.domain.on_boundary(300, generator)
    found = of_layers(problem, solution.Fitted(layers), points)
    counted = multiply_adds(monkeypatch, dtype)
    floor = rounding.measure(problem, found, precision, GaussNewton())
    assert len(counted) == 2 and 0 < sum(counted) <= 16_000_000
    assert floor.loss is not None and floor.loss > 0


def test_the_guards_float16_takes_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    problem: Any = PoissonLShape()
    layers = Fnn(units=(256,) * 4).initial(problem, seed=0)
    counted = multiply_adds(monkeypatch, "float16")
    found = guard.measure(problem, layers, "fp16", hard=False, line_search=False, seed=0)
    assert 0 < sum(counted) <= 16_000_000
    assert found.points >= guard.FEWEST


def test_the_sample_is_whole_where_it_is_cheap() -> None:
    """A network of the recipe's size in any dtype, a wide one where BLAS multiplies; a few points at the least."""
    problem: Any = PoissonLShape()
    asks = guard.asked(problem)
    sizes = {units: Fnn(units=(units,) * 4).initial(problem, seed=0) for units in (50, 600)}
    assert guard.sample_size(sizes[50], *asks, ["longdouble"], guard.WORK) == guard.SAMPLE
    assert guard.sample_size(sizes[600], *asks, ["float32", "float64"], guard.WORK) == guard.SAMPLE
    assert guard.sample_size(sizes[600], *asks, ["longdouble"], guard.WORK) == guard.FEWEST


def test_a_floor_weighs_as_the_loss_does() -> None:
    """A condition by its weight, a point near the corner by the corner's; with enrichment."""
    problem: Any = PoissonLShape()
    layers = Fnn(units=(8,)).initial(problem, seed=0)
    generator = np.random.default_rng(0)
    drawn = problem.corner.draw(80, generator)
    light = drawn[problem.corner.weight(drawn) < 1]
    assert len(light) > 20
    points = {"inside": light, "u on the boundary": problem.domain.on_boundary(20, generator)}
    fitted = solution.Fitted(layers, {"r^(2/3)": 0.4, "r^2 log r": 1.0}, enriched=True)
    found = of_layers(problem, fitted, points)
    plain, heavy, graded = (
        rounding.measure(problem, found, "fp32", solver)
        for solver in (GaussNewton(), GaussNewton(condition_weight=100.0), GaussNewton(graded=True))
    )
    edge, middle = plain.terms["u on the boundary"], plain.terms["inside"]
    assert plain.loss == pytest.approx(edge + middle)
    assert heavy.loss == pytest.approx(100 * edge + middle)
    assert graded.terms["u on the boundary"] == edge and graded.terms["inside"] < middle


def test_the_guards_derivatives_are_those_of_the_network() -> None:
    """Against central differences of the same network in float64."""
    problem: Any = PoissonLShape()
    layers = Fnn(units=(8, 8)).initial(problem, seed=3)
    points = np.array([[-0.5, 0.25], [0.3, -0.7]])
    found = guard.quantities(problem, layers, points, "fp64", hard=False)
    fitted, step = solution.Fitted(layers), 1e-4
    shifts = [np.array([step, 0]), np.array([0, step])]
    ahead, behind = ([solution.predict(fitted, problem, points + sign * s) for s in shifts] for sign in (1, -1))
    slopes = [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]
    assert found["first"] == pytest.approx(np.stack(slopes), abs=1e-7)
    middle = solution.predict(fitted, problem, points)
    laplacian = sum(a - 2 * middle + b for a, b in zip(ahead, behind, strict=True)) / step**2
    assert found["residual laplacian + 1"] == pytest.approx(laplacian + 1, abs=1e-6)


def test_solver_none_is_no_part_of_a_classifier(place: Path) -> None:
    """A run saved before there were solvers loads, and what decides its result is what it was."""
    config = read_config(done(place, "dataset=digits", "training=quick", "tracking=none", "training.epochs=1"))
    older = {key: value for key, value in config.items() if key != "solver"}
    now, then = experiments.load(config), experiments.load(older)
    assert "solver" not in now.deciding()
    assert now.config_sha256() == then.config_sha256()


def test_a_term_that_is_zero_all_along_is_drawn_as_nothing(tmp_path: Path) -> None:
    """matplotlib raises IndexError for marks at distances on a line without a point."""
    from pipeline.pinn.figures import loss_history

    history = [
        solution.Moment(step, 0.0, 1.0, {"inside": 1.0, "boundary": 0.0}, solution.Fitted(())) for step in range(30)
    ]
    loss_history(tmp_path / "figure.png", history, [0.1] * 30, "a condition that is met")
    assert (tmp_path / "figure.png").stat().st_size > 0


def test_the_title_of_training_points_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    from pipeline.pinn import figures

    drawn: list[Any] = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, _: drawn.append(self.figure))
    problem: Any = PoissonLShape()
    name = "pinn-deepxde_adam_lbfgs-poisson_lshape-torch-fp32"
    figures.training_points(tmp_path / "points.png", problem, {"inside": np.array([[-0.5, 0.5], [0.5, -0.5]])}, name)
    drawn[0].canvas.draw()
    (title,) = [text for text in drawn[0].findobj(Text) if name in text.get_text()]
    assert 0 <= title.get_window_extent().x0 <= title.get_window_extent().x1 <= drawn[0].bbox.x1


def test_training_values_are_drawn_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lay on the network's curve, so that a network that had missed them all seemed to meet each one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from pipeline.pinn import errors, figures

    drawn: list[Any] = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, _: drawn.append(self.figure))
    problem: Any = Function()
    grid, at = np.linspace(-1, 1, 101)[:, None], np.linspace(-1, 1, 16)[:, None]
    measured = errors.Measured(grid, np.zeros((101, 1)), problem.reference(grid))
    figures.solution(tmp_path / "solution.png", problem, measured, {"values": at}, "pinn-deepxde-function-torch-fp32")
    (circles,) = [line for line in drawn[0].axes[0].get_lines() if line.get_marker() == "o"]
    np.testing.assert_array_equal(circles.get_ydata(), problem.reference(at)[:, 0])
    assert drawn[0].get_suptitle().endswith("(circles: the reference at the training points)")
    drawn[0].canvas.draw()
    title = drawn[0].texts[0].get_window_extent()  # row A17's was cut off on both sides
    assert title.x0 >= 0
    assert title.x1 <= drawn[0].bbox.x1
    for axes in drawn[0].axes:  # names of the ODE's curves lay on these
        assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
