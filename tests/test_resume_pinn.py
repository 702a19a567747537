"""A solver that is killed goes on from its checkpoint, and ends as one that nobody killed, to the bit."""

from __future__ import annotations

import csv
import signal
from pathlib import Path
from typing import Any

import pytest
from command import pipeline, refused, runs
from test_resume import killed, result_of, resumed

from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics

PINN = ("stage=pinn", "tracking=none", "training.checkpoint.every=10", "model.units=[12,12]")
OWN = (*PINN, "backend=jax", "solver.every=2", "solver.resample=37", "dataset=ode", "precision=fp64")
# Steps enough for a signal to find them at work; a row of the history after every second one.
SOLVERS = {
    "adam": (*OWN, "solver.steps=1500", "solver.seeds=2", "solver.adaptive=true", "solver.start=glorot"),
    "lbfgs": (*OWN, "solver.steps=600"),
    "ssbroyden": (*OWN, "solver.steps=600", "solver.scale=2.0", "solver.start=features"),
    "gauss_newton": (*OWN, "solver.steps=600", "solver.seeds=2"),
    "deepxde_adam": (*PINN, "solver.steps=1500", "solver.every=7", "dataset=diffusion_inverse", "dataset.interior=40"),
}


def outcome(folder: Path) -> tuple[Any, ...]:
    """Weights, points, every record, every result and the history's table but for their times."""
    (run,) = runs(folder)
    receipt = read_json(run / "receipt.json")
    with (run / "artifacts/tables/history.csv").open() as file:
        rows = [{name: value for name, value in row.items() if not name.endswith("_s")} for row in csv.DictReader(file)]
    return (
        receipt["weights_sha256"],
        receipt["points_sha256"],
        [(record.step, record.metrics) for record in read_metrics(run)],
        result_of(run),
        rows,
    )


def check(folder: Path, words: tuple[str, ...], numbers: tuple[int, ...]) -> None:
    (folder / "whole").mkdir()
    result = pipeline(folder / "whole", *words)
    assert result.returncode == 0, result.stderr
    for number in numbers:
        name = signal.Signals(number).name
        assert killed(folder / name, words, 0.05, number) in (-9, 143)
        run = resumed(folder / name)
        assert outcome(folder / name) == outcome(folder / "whole")
        receipt = read_json(run / "receipt.json")
        assert receipt["resumed"][0]["step"] > 0
        assert receipt["of_the_last_process"] == ["peak_memory", "device.cpu_threads"]
        assert not (run / "checkpoints").exists()


@pytest.mark.wide
def test_a_killed_solver_ends_as_one_that_nobody_killed(tmp_path: Path) -> None:
    words = (*PINN, "backend=jax", "dataset=function", "solver=adam", "solver.steps=3000", "solver.every=10")
    check(tmp_path, words, (signal.SIGTERM,))


@pytest.mark.wide
@pytest.mark.parametrize("solver", ["adam", "lbfgs", "ssbroyden", "gauss_newton"])
def test_every_solver_of_ours(tmp_path: Path, solver: str) -> None:
    check(tmp_path, (*SOLVERS[solver], f"solver={solver}"), (signal.SIGKILL, signal.SIGTERM))


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_adam_of_deepxde(tmp_path: Path, backend: str) -> None:
    words = (*SOLVERS["deepxde_adam"], "solver=deepxde_adam", f"backend={backend}")
    check(tmp_path, words, (signal.SIGKILL, signal.SIGTERM))


@pytest.mark.wide
def test_lbfgs_of_deepxde_starts_over(tmp_path: Path) -> None:
    words = (
        *(*PINN, "backend=torch", "precision=fp64", "dataset=function"),
        *("solver=deepxde_adam_lbfgs", "solver.steps=10", "solver.lbfgs_steps=3000"),
    )
    check(tmp_path, words, (signal.SIGTERM,))
    (run,) = runs(tmp_path / "SIGTERM")
    (entry,) = read_json(run / "receipt.json")["resumed"]
    assert (entry["step"], entry["note"]) == (10, "L-BFGS of DeepXDE has no checkpoints and started over")


def test_a_solver_reads_nothing_else_of_the_group_training(tmp_path: Path) -> None:
    said = refused(tmp_path, *PINN, "training.epochs=3", "solver=adam", "backend=jax")
    assert said.startswith("training.epochs with stage=pinn: a problem has no batches and no classes; ")
