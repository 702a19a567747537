"""stage=pinn_comparison: rows, seeds, the time to each level, and the classical solvers beside them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from command import pipeline, refused, runs, write_files
from rich.console import Console

from pipeline.errors import UserError
from pipeline.pinn.fits import check_classical
from pipeline.pinn.problems.function import Function
from pipeline.pinn.problems.ode import Ode
from pipeline.pinn.problems.poisson_lshape import PoissonLShape
from pipeline.report.table import figure, show_table
from pipeline.runs.result import Metric
from pipeline.stages.pinn_comparison import (
    Measured,
    PinnComparison,
    Reached,
    classical,
    costs,
    errors,
    measured,
    metrics,
    reached,
    times,
    to_reach,
)

CONF = Path(__file__).parents[1] / "conf"
COMPARISON = ("stage=pinn_comparison", "stage.seeds=2", "tracking=none")
LEFT_OUT = tuple(f"stage.rows.{name}=null" for name in ("adam", "lbfgs", "ssbroyden", "gauss_newton"))
LEVELS = {"0.01": Reached(3, 1.0), "0.001": Reached(2, 1.5), "0.0001": Reached(0, np.inf)}
FEATURES = "solver=gauss_newton solver.steps=1 solver.every=1 solver.start=features solver.scale=1.0"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = (
        "+stage.rows.short='solver=adam solver.steps=20 solver.every=10 model.units=[10]'",
        f"+stage.rows.features='{FEATURES} model.units=[100]'",
    )
    folder = tmp_path_factory.mktemp("comparison")
    result = pipeline(folder, *COMPARISON, *LEFT_OUT, *rows)
    assert result.returncode == 0, result.stdout + result.stderr
    (found,) = [run for run in runs(folder) if (run / "cells").exists()]
    return found


@pytest.mark.wide
def test_each_row_has_its_seeds_and_its_spread(run: Path) -> None:
    with (run / "artifacts" / "tables" / "comparison.csv").open() as file:
        result = {row["name"]: row for row in csv.DictReader(file)}
    assert list(result) == ["short", "features", "function-polynomial"]
    for name in ("short", "features"):
        assert int(result[name]["n"]) == 2
        assert float(result[name]["lowest"]) < float(result[name]["error"]) < float(result[name]["highest"])
    assert float(result["features"]["error"]) < 1e-3 < 1e-1 < float(result["short"]["error"])
    assert (result["short"]["seconds_to_0.01"], result["short"]["seeds_to_0.01"]) == ("inf", "0")
    assert result["features"]["seeds_to_0.001"] == "2"
    assert 0 < float(result["features"]["seconds_to_0.001"]) <= float(result["features"]["training_s"]) + 1e-3


@pytest.mark.wide
def test_the_compilation_stands_beside_the_training(run: Path) -> None:
    """Of each of our rows, in the table, the file and the results; a classical solver and DeepXDE have none of it."""
    with (run / "artifacts" / "tables" / "comparison.csv").open() as file:
        result = {row["name"]: row["compile_s"] for row in csv.DictReader(file)}
    scalars = json.loads((run / "result.json").read_text())["scalars"]
    for name in ("short", "features"):
        assert float(result[name]) == scalars[f"{name}/compile_s"] > 0
    assert result["function-polynomial"] == "nan" and "function-polynomial/compile_s" not in scalars
    ours, theirs = (
        Measured("a", 1, 1e-3, 1e-3, 1e-3, 2.0, 3.5, 1.0),
        Measured("b", 1, 1e-3, 1e-3, 1e-3, 2.0, np.nan, 1.0),
    )
    assert [row[1:] for row in costs([ours, theirs]).rows] == [("2", "3.5"), ("2", "")]


@pytest.mark.wide
def test_the_figures_are_those_of_the_table(run: Path) -> None:
    scalars = json.loads((run / "result.json").read_text())["scalars"]
    assert scalars["rows"] == 3
    assert scalars["function-polynomial/relative_l2"] == pytest.approx(1.13e-5, rel=0.01)


def test_a_row_that_is_a_mistake_is_named(tmp_path: Path) -> None:
    result = refused(tmp_path, *COMPARISON, "+stage.rows.wrong='solver=adam solver.stepz=3'")
    assert "stage.rows.wrong" in result and "solver.steps" in result


def test_a_row_of_the_best_of_several_seeds_is_refused(tmp_path: Path) -> None:
    """It would stand beside rows of single seeds."""
    said = refused(tmp_path, *COMPARISON, "+stage.rows.best='solver=gauss_newton solver.seeds=3'")
    assert said.endswith("solver.seeds=3: one for each run here; stage.seeds says how many runs")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("stage=pinn", "dataset=ode", "solver=gauss_newton", "solver.seeds=3"), "solver.seeds"),
        (("stage=long_range", "stage.seeds=3"), "stage.seeds"),
        pytest.param(("stage=pinn_comparison", "stage.seeds=3"), "stage.seeds", marks=pytest.mark.wide),
        pytest.param(("stage=seeds", "dataset=digits", "stage.repeats=3"), "stage.repeats", marks=pytest.mark.wide),
        pytest.param(("stage=amp", "dataset=digits", "stage.repeats=3"), "stage.repeats", marks=pytest.mark.wide),
    ],
    ids=["pinn", "long_range", "comparison", "seeds", "amp"],
)
@pytest.mark.wide
def test_a_grid_whose_cells_share_a_seed_is_refused(tmp_path: Path, words: tuple[str, ...], key: str) -> None:
    """The same network would count twice in the median over the seeds."""
    said = refused(tmp_path, "-m", *words, "seed=0,3,5,8")
    assert said == f"seed=3,5 with {key}=3: both cells train seed 5; leave 3 between the seeds, or use {key}=1"


@pytest.mark.wide
def test_how_many_runs_have_a_note_that_differs_in_its_numbers(tmp_path: Path) -> None:
    """Also that of a network that holds the equations at its training points alone."""
    row = "solver=gauss_newton solver.steps=300 dataset=ode dataset.interior=12"
    result = pipeline(tmp_path, *COMPARISON, *LEFT_OUT, f"+stage.rows.few='{row}'")
    assert result.returncode == 0, result.stderr
    (run,) = [run for run in runs(tmp_path) if (run / "cells").exists()]
    notes = [one for one in json.loads((run / "result.json").read_text())["notes"] if " of 2 cells" in one]
    assert [note.partition(" (residual ")[0] for note in notes] == [
        "2 of 2 cells, such as: the equations hold at the training points"
    ]


@pytest.mark.parametrize("words", ["training.epochs=3", "optimizer=sgd", "loss=mse"])
def test_what_only_a_classifier_reads_is_refused(tmp_path: Path, words: str) -> None:
    said = refused(tmp_path, *COMPARISON, words)
    key = words.partition("=")[0]
    assert said.startswith(f"{key} with stage=pinn_comparison: a problem has no batches and no classes; ")


def test_a_row_with_the_name_of_a_metric_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, *COMPARISON, "+stage.rows.rows='solver=gauss_newton'")
    assert said == "stage.rows.rows: the metric that counts rows has this name; choose another"


def test_a_comparison_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        PinnComparison(rows={"adam": None})


def test_the_time_to_a_level_is_that_of_the_first_moment_as_good() -> None:
    history = [(0.5, 0.1), (1.0, 0.009), (1.5, 0.02), (2.0, 0.0009)]
    assert [reached(history, level) for level in (0.2, 0.01, 1e-3, 1e-4)] == [0.5, 1.0, 2.0, np.inf]
    shown = times([Measured("one", 3, 1e-3, 1e-4, 1e-2, 2.0, 3.0, 10.0, LEVELS)], (1e-2, 1e-3, 1e-4))
    assert shown.rows[0][-3:] == ("1", "1.5 (2)", "never")


@pytest.mark.parametrize("n", [1, 10])
def test_the_tables_fit_a_terminal(n: int) -> None:
    """Of the shipped rows and levels: no name and no figure is folded at 80 columns."""
    rows = yaml.safe_load((CONF / "experiment" / "pinn_comparison.yaml").read_text())["stage"]["rows"]
    levels = PinnComparison(rows={"one": "solver=adam"}).levels
    reached_by = {f"{level:g}": Reached(max(n - 1, 1), 12.345) for level in levels}
    found = [Measured(name, n, 1e-3, 1e-4, 1e-2, 1234.5, 12.345, 10.0, reached_by) for name, row in rows.items() if row]
    for shown in (errors(found), costs(found), times(found, levels)):
        text = io.StringIO()
        show_table(Console(width=80, file=text), shown)
        lines = text.getvalue().splitlines()
        assert shown.rows
        for row in shown.rows:
            assert any(re.split(r"\s{2,}", line.strip()) == [each for each in row if each] for line in lines), row


def test_a_seed_without_a_result_counts_as_infinite(tmp_path: Path) -> None:
    """The median was of those that had not diverged."""
    write_files(tmp_path, {"artifacts/tables/history.csv": "training_s,relative_l2\n1.0,0.1\n"})
    entries: Any = [
        SimpleNamespace(state="done", run=tmp_path, metrics={"test/relative_l2": Metric("test/relative_l2", error)})
        for error in (0.1, 0.2)
    ]
    lost: Any = SimpleNamespace(state="failed", run=None, metrics={})
    stage = PinnComparison(rows={"a": "solver=adam"}, levels=(0.1,))
    one, other = (measured("a", [*entries, *(lost,) * count], stage) for count in (1, 3))
    assert (one.n, one.error, one.lowest, one.highest) == (2, 0.2, 0.1, np.inf)
    assert errors([one]).rows == (("a", "2", "2.0e-01", "1.0e-01 to inf"),)
    assert other.error == np.inf
    names = [[metric.name for metric in metrics([each])] for each in (one, other)]
    assert names == [["rows", "a/relative_l2", "a/training_s"], ["rows"]]
    assert [row[1] for row in times([one, replace(one, highest=0.2)], [0.1]).rows] == ["1 (2)", "1"]


def test_the_time_to_a_level_is_of_the_seeds_that_got_there() -> None:
    histories = [[(1.0, 0.1), (2.0, 0.001)], [(1.0, 0.001)], [(1.0, 0.1)]]
    assert to_reach(histories, 0.01) == Reached(2, 1.5)
    assert to_reach(histories, 1e-6) == Reached(0, np.inf)


def test_each_setting_of_a_problem_has_its_classical_solution() -> None:
    """Of 6 points and of 32 the one row had the worse error, beside which the network of the other seemed as good."""
    plan: Any = []
    for points in (6, 32, 32):
        config = {"dataset": {"_target_": "pipeline.pinn.problems.function.Function", "interior": points}}
        one = SimpleNamespace(dataset=Function(interior=points), config=config)
        plan.append(SimpleNamespace(cell=SimpleNamespace(experiment=one)))
    few, many = classical(plan, 200)
    assert (few.name, many.name) == ("function-polynomial interior=6", "function-polynomial interior=32")
    assert many.error < 1e-6 * few.error
    (alone,) = classical(plan[:1], 200)
    assert alone.name == "function-polynomial"


def test_settings_that_a_config_leaves_out_are_the_problems_own() -> None:
    """A key that one config had and the other had not was a KeyError, after all trainings."""
    plan: Any = []
    for settings in ({}, {"interior": 6}, {"interior": Function().interior}):
        one = SimpleNamespace(dataset=Function(**settings), config={"dataset": settings})
        plan.append(SimpleNamespace(cell=SimpleNamespace(experiment=one)))
    found = [one.name for one in classical(plan, 200)]
    assert found == [f"function-polynomial interior={interior}" for interior in (Function().interior, 6)]


CLOCK = [0.0]  # seconds, of which a dear part takes one and all else none


class DearToEvaluate(Function):
    """Its solution takes a second at many points; solving takes nothing."""

    def classical(self, points: np.ndarray) -> tuple[str, np.ndarray]:
        CLOCK[0] += 1.0 if len(points) > 100 else 0.0
        return super().classical(points)


class DearBound(Function):
    """A problem whose classical solver's bound on its error takes a second."""

    def classical(self, points: np.ndarray) -> tuple[str, Callable[[], float]]:  # type: ignore[override]
        def bound() -> float:
            CLOCK[0] += 1.0
            return 1e-5

        name, _ = super().classical(points)
        return name, bound


@pytest.mark.parametrize("problem", [DearToEvaluate(), DearBound()])
def test_a_classical_solvers_time_is_not_of_its_values_at_the_grid(
    problem: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network's time leaves out its predictions there; most of Runge-Kutta's were its values, and most of the
    L-shape's the bound on its error."""
    plan: Any = [
        SimpleNamespace(cell=SimpleNamespace(experiment=SimpleNamespace(dataset=problem, config={"dataset": {}})))
    ]
    monkeypatch.setattr("time.perf_counter", lambda: CLOCK[0])
    began = CLOCK[0]
    (found,) = classical(plan, 200)
    assert found.training_s == 0 and CLOCK[0] > began
    assert found.error < 1e-4


class Fitted(Function):
    """Another problem, whose classical solver has the same name."""


def test_classical_solvers_of_one_name_are_told_apart() -> None:
    """Also from a row: two metrics of one name ended a comparison in a traceback, after all its trainings."""
    plan: Any = []
    for problem in (Function(), Fitted()):
        one = SimpleNamespace(dataset=problem, config={"dataset": {"_target_": type(problem).__name__}})
        plan.append(SimpleNamespace(cell=SimpleNamespace(experiment=one)))
    found = classical(plan, 200, rows=["function-polynomial"])
    assert [one.name for one in found] == ["function-polynomial of Function", "function-polynomial of Fitted"]
    assert [one.name for one in classical(plan, 200)] == ["function-polynomial", "function-polynomial of Fitted"]


WRONG_CLASSICAL: dict[str, tuple[Any, str]] = {
    "flat": (lambda points: ("mine", np.zeros(len(points))), "classical() has the shape (16,); it has to be (16, 1)"),
    "nan": (lambda points: ("mine", np.full((len(points), 1), np.nan)), "classical() is not finite inside the domain"),
    "int": (lambda _: ("mine", 0), "classical() has the shape (); it has to be (16, 1)"),
    "nameless": (
        lambda points: np.zeros((len(points), 1)),
        "classical() gives ndarray; give its name, and the solution or a bound on its error",
    ),
    "fails": (lambda _: 1 / 0, "classical() cannot be computed (ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("name", WRONG_CLASSICAL)
def test_a_classical_solution_of_another_shape_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat values less a column are a square of differences, whose norm was the classical solver's error."""
    made, said = WRONG_CLASSICAL[name]
    monkeypatch.setattr(Function, "classical", lambda _, points: made(points))
    with pytest.raises(UserError) as caught:
        check_classical(Function())
    assert str(caught.value).startswith(f"dataset=function: {said}")


@pytest.mark.parametrize("problem", [Function(), Ode(), PoissonLShape()])
def test_a_classical_solution_passes(problem: Any) -> None:
    check_classical(problem)


@pytest.mark.parametrize(("problem", "least"), [(Function(), 2e-5), (Ode(), 1e-11), (PoissonLShape(), 1e-11)])
def test_a_classical_solver_is_as_good_as_it_says(problem: Any, least: float) -> None:
    points = problem.domain.grid(200)
    _, answer = problem.classical(points)
    answer = answer() if callable(answer) else answer
    reference = problem.reference(points)
    error = answer if isinstance(answer, float) else np.linalg.norm(answer - reference) / np.linalg.norm(reference)
    assert error <= least


@pytest.mark.parametrize(
    ("value", "shown"), [(0.98, "0.9800"), (0.001, "0.0010"), (2.6e-7, "2.6e-07"), (0.0, "0.0000")]
)
def test_a_small_error_is_shown_and_not_rounded_to_nothing(value: float, shown: str) -> None:
    assert figure(value) == shown
