"""The benchmarks' file: what a later call of the same day leaves of an earlier one."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from bench import ceilings, pinn
from bench.__main__ import asked, main
from bench.kept import keep, keep_round
from bench.measure import Side, agree, all_below, at_least, at_most, machine, not_measured, row
from bench.pinn import Training, how_trained
from pipeline.errors import UserError
from pipeline.pinn.problems.burgers import Burgers
from pipeline.pinn.problems.function import Function
from pipeline.pinn.problems.ode import Ode
from pipeline.pinn.problems.poisson_lshape import PoissonLShape
from pipeline.pinn.solvers.deepxde import Deepxde
from pipeline.pinn.solvers.gauss_newton import GaussNewton
from pipeline.runs.json_files import write_json
from pipeline.runs.result import Metric, Result, seconds

TAKE_ROUNDS = (
    "listing, gpt, gpt_fast, ingredients, generation, inference, processes, memory, ceilings, kernels, matmul, pinn"
)
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def result(commit: str, figure: float) -> dict[str, object]:
    return {"git": {"commit": commit, "dirty": False}, "rows": [{"what": "x", "median": figure}]}


def test_each_benchmark_keeps_the_commit_that_it_measured(tmp_path: Path) -> None:
    where = {"cpu": "Some CPU", "cores": 2, "date": "2026-01-01"}
    keep(tmp_path, where, {"startup": result("old", 1.0), "tracking": result("old", 2.0)})
    path = keep(tmp_path, where, {"tracking": result("new", 3.0)})
    assert path == tmp_path / "some-cpu-2-cores" / "2026-01-01.json"
    found = json.loads(path.read_text())
    assert found["results"] == {"startup": result("old", 1.0), "tracking": result("new", 3.0)}
    assert "git" not in found["machine"]


def test_a_file_that_cannot_be_read_is_not_overwritten(tmp_path: Path) -> None:
    """After a merge with a conflict everything that it held was gone."""
    where = {"cpu": "a CPU", "cores": 2, "date": "2026-11-26"}
    path = keep(tmp_path, where, {"startup": result("old", 1.0)})
    before = "<<<<<<< HEAD\n" + path.read_text()
    path.write_text(before)
    with pytest.raises(UserError, match=r"2026-11-26\.json: is not JSON; mend it, or take it away$"):
        keep(tmp_path, where, {"tracking": result("new", 2.0)})
    assert path.read_text() == before


def test_the_system_is_named_without_its_builder() -> None:
    system = machine()["system"]
    assert system.split()[0] == platform.system()
    assert "-" not in system


def test_the_files_in_the_repository_are_of_this_form() -> None:
    files = [*RESULTS.glob("*/*.json")]
    assert files
    for path in files:
        found = json.loads(path.read_text())
        assert "-" not in found["machine"]["system"]
        assert any(made["rows"] for made in found["results"].values())
        for made in found["results"].values():
            assert made["git"]["commit"]
            assert all({"what", "median", "min", "max", "n"} <= row.keys() for row in made["rows"])


def test_a_benchmark_takes_its_options() -> None:
    assert asked(["pinn", "--problems", "function", "ode", "--rounds", "1"]) == (
        ["pinn"],
        {"problems": ["function", "ode"], "rounds": 1},
    )
    assert asked(["startup", "amp"]) == (["startup", "amp"], {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "nothing: no such benchmark; choose from startup; "),
        (["startup", "--rounds", "2"], f"--rounds: goes with one benchmark, of {TAKE_ROUNDS}"),
        (["gpt", "memory", "--rounds", "2"], f"--rounds: goes with one benchmark, of {TAKE_ROUNDS}"),
        (["gpt", "--parts", "step"], "--parts: goes with one benchmark, of pinn"),
        (["kernel"], r"kernel: no such benchmark \(did you mean kernels\?\); choose from startup; "),
        (["pinn", "--rounds", "0"], "--rounds 0: give 1 or more"),
    ],
)
def test_what_no_benchmark_takes_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        asked(words)


@pytest.mark.parametrize("words", [["gpt_fats"], ["gpu", "kernels fp16"]])
def test_a_name_that_there_is_not_ends_in_one_line(words: list[str]) -> None:
    command = [sys.executable, "-m", "bench", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    meant = {"gpt_fats": "benchmark (did you mean gpt_fast?)", "kernels fp16": "part (did you mean kernels, fp16?)"}
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {words[-1]}: no such {meant[words[-1]]}; choose from ")


def test_every_side_ends_by_one_rule() -> None:
    """At the first row of the history that is as good, also where a later one is worse; never is not a number."""
    one = Training([(0.1, 0.5), (0.2, 0.01), (0.3, 0.02), (0.4, 0.01)], 1.0, 0.01, "16 points")
    assert [one.reached(level) for level in (1.0, 0.02, 0.01)] == [0.1, 0.2, 0.2]
    assert one.reached(1e-3) != one.reached(1e-3)


@pytest.mark.parametrize("problem", pinn.STEPS)
def test_a_step_of_a_training_that_went_nowhere_does_not_count(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever side it is: a network of zeros, whose relative error is 1."""
    errors = {"pinn_ours.py": 1e-2, "pinn_deepxde.py": 1e-2, "pipeline": 1e-2}
    monkeypatch.setattr(pinn, "peer", lambda script, *_: {"step_ms": 1.0, "error": errors[script]})
    monkeypatch.setattr(pinn, "pipeline", lambda *_: {"training_s": 1.0, "test/relative_l2": errors["pipeline"]})
    assert pinn.a_step(problem, 1)
    errors["pinn_ours.py"] = 1.0
    with pytest.raises(SystemExit, match=r"our Adam: error is above .* no time is worth anything"):
        pinn.a_step(problem, 1)
    errors |= {"pinn_ours.py": 1e-2, "pinn_deepxde.py": 1.0, "pipeline": 1.0}
    with pytest.raises(SystemExit, match="DeepXDE on torch: error is above "):
        pinn.a_step(problem, 1)


def test_a_result_that_is_no_number_is_below_nothing() -> None:
    with pytest.raises(SystemExit, match=r"ours: error is above 0\.5: "):
        all_below([Side("ours", dict, [{"error": 0.1}, {"error": float("nan")}])], "error", 0.5)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_that_is_no_number_agrees_with_nothing_and_reaches_no_limit(place: int) -> None:
    """Wherever it stands: the order of NaN is arbitrary, so that min, max and sorting may pass it over."""
    values = [2.0, 2.0, 2.0]
    values[place] = math.nan
    with pytest.raises(SystemExit, match=r"loss differs by more than 0\.1: "):
        agree([Side("ours", dict, [{"loss": value} for value in values])], "loss", 0.1)
    found = row("ours / theirs", values, "x")
    assert (at_least(found, 1.5)["met"], at_most(found, 3.0)["met"]) == (False, False)


def test_what_was_not_measured_has_no_numbers_and_reaches_no_limit() -> None:
    found = not_measured("ours / theirs", "x")
    assert (found["median"], found["min"], found["max"], found["n"]) == (None, None, None, 0)
    assert (at_least(found, 0.0)["met"], at_most(found, 3.0)["met"]) == (False, False)


def test_rounds_of_another_size_are_left_out() -> None:
    """Our products' size is chosen by the rate, anew each time; the peer's is the first."""
    ours = Side("ours", dict, [{"size": 512.0, "rate": 1.0}, {"size": 1024.0, "rate": 2.0}])
    theirs = Side("theirs", dict, [{"rate": 3.0}, {"rate": 4.0}])
    kept = ceilings.of_size(1024.0, "size", ours, theirs)
    assert [side.values("rate") for side in kept] == [[2.0], [4.0]]
    with pytest.raises(SystemExit, match="size: 64 at first, and in no round after it"):
        ceilings.of_size(64.0, "size", ours, theirs)


def test_a_benchmark_that_fails_lets_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And those of a GPU machine are of its CPU: no GPU is visible to any side."""
    seen = []

    def failing() -> list[dict[str, object]]:
        raise SystemExit("the sides differ")

    def working() -> list[dict[str, object]]:
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return [row("x", [1.0], "s")]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(sys, "argv", ["bench", "startup", "sweep"])
    monkeypatch.setattr("bench.__main__.benchmark", {"startup": failing, "sweep": working}.__getitem__)
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, seen) == (1, [""])
    assert "startup: the sides differ" in capsys.readouterr().err
    (kept,) = tmp_path.glob("results/*/*.json")
    (made,) = json.loads(kept.read_text())["results"].values()
    assert made["rows"][0]["median"] == 1 and made["processor"]["name"] and made["versions"]["torch"]


def test_an_earlier_round_of_the_day_is_kept(tmp_path: Path) -> None:
    """A limit that was missed does not disappear because a later round met it."""
    where = {"cpu": "Some CPU", "cores": 2, "date": "2026-01-01"}
    for figure in (1.0, 2.0, 3.0):
        path = keep_round(tmp_path, where, "tracking", result("one", figure))
    found = json.loads(path.read_text())["results"]["tracking"]
    assert found == {**result("one", 3.0), "earlier": [result("one", 1.0), result("one", 2.0)]}


@pytest.mark.parametrize(
    ("problem", "solver", "said"),
    [
        (Function(), Deepxde(), "16 points, Adam, first order, fp32"),
        (Ode(), GaussNewton(), "35+2 points, Gauss-Newton, second order, fp32"),
        (
            PoissonLShape(),
            Deepxde(),
            "1200+120 points, Adam, first order, then at most 15,000 steps of L-BFGS, fp32",
        ),
        (
            Burgers(),
            Deepxde(),
            "2540+80+160 points, Adam, first order, then at most 15,000 steps of L-BFGS, fp32",
        ),
    ],
)
def test_a_row_says_how_its_side_was_trained(problem: Any, solver: Any, said: str) -> None:
    assert how_trained(problem, solver, "fp32") == said


def test_a_time_is_that_of_the_wall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the training, which leaves out what neither a step nor compilation takes."""
    table = tmp_path / "artifacts" / "tables" / "history.csv"
    table.parent.mkdir(parents=True)
    table.write_text("step,training_s,wall_s,loss,relative_l2\n1,0.1,2.5,1,0.5\n2,0.2,3.5,1,0.1\n")
    write_json(tmp_path / "result.json", Result((seconds("compile_s", 1.0), Metric("test/relative_l2", 0.1))).plain())
    parts = {"dataset": Function(), "solver": Deepxde(), "precision": SimpleNamespace(name="fp32")}
    monkeypatch.setattr(pinn, "pipeline_in", lambda *_: tmp_path)
    monkeypatch.setattr(pinn, "read_config", lambda _: {})
    monkeypatch.setattr("pipeline.experiment.load", lambda _: SimpleNamespace(**parts))
    assert pinn.trained("stage=pinn").reached(0.1) == 3.5


def test_both_sides_are_looked_at_as_often() -> None:
    """50 times at most: DeepXDE by this key, our best recipes after each of their few steps."""
    assert [pinn.often(problem) for problem in pinn.STEPS] == [f"solver.every={n}" for n in (200, 400, 1000)]
    for problem in pinn.STEPS:
        ours = yaml.safe_load((RESULTS.parent / "conf" / "experiment" / f"{problem}_best.yaml").read_text())["solver"]
        assert ours["every"] == 1 and ours["steps"] <= pinn.LOOKS
