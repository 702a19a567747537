"""`-m`: each cell in a process of its own; nothing leaks, what fails costs no other, what is done stays done."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import COMMAND, DIGITS, Done, environment, pipeline, refused, runs, status

from pipeline import journal as journals

# A model that does what a bad day does, by its number: 15 are fine, 5 are not, each in its own way.
PLANTED = """
import os, signal, sys, time
from pipeline.models.linear import Linear
from pipeline.spec import spec

@spec
class Planted:
    number: int = 0

    def torch(self, shapes):
        if self.number == 3:
            raise KeyError("planted")
        if self.number == 6:
            sys.exit(0)
        if self.number == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.number == 12:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        if self.number == 15:
            os._exit(0)
        return Linear().torch(shapes)
"""
BAD = {"3", "6", "9", "12", "15"}
QUIET = ("tracking=none", *DIGITS)


def trained(folder: Path) -> list[Path]:
    """The runs of cells: not those of the grids and searches that they belong to."""
    return [run for run in runs(folder) if not (run / "cells").exists()]


def grids(folder: Path) -> list[Path]:
    return [run for run in runs(folder) if status(run).name == "grid"]


def table(grid: Path) -> list[dict[str, str]]:
    """grid.csv as the grid left it."""
    with (grid / "artifacts" / "grid.csv").open() as file:
        return list(csv.DictReader(file))


def weights(run: Path) -> str:
    digest: str = json.loads((run / "receipt.json").read_text())["weights_sha256"]
    return digest


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("grid")


@pytest.fixture(scope="module")
def grid(place: Path) -> Done:
    """The grid of the README, on the digits, with a precision that no CPU has."""
    return pipeline(place, "-m", "precision=fp32,tf32,mixed", "model=linear,mlp", *DIGITS, "tracking.wait=100")


def test_each_cell_is_a_run_and_the_impossible_are_told(grid: Done, place: Path) -> None:
    assert grid.returncode == 0, grid.stderr
    assert "6 cells: 4 to run, 2 impossible here" in grid.stderr
    assert "impossible here: precision=tf32 model=linear and 1 more: precision=tf32 with backend=torch" in grid.stderr
    assert "4 done · 0 failed · 2 skipped · 0 running · 0 waiting" in grid.stderr
    receipts = [json.loads((run / "receipt.json").read_text()) for run in trained(place)]
    names = [journals.read_config(run)["model"]["_target_"].rpartition(".")[2] for run in trained(place)]
    assert [(one["precision"]["effective"], name) for one, name in zip(receipts, names, strict=True)] == [
        ("fp32", "Linear"),
        ("fp32", "Mlp"),
        ("mixed_bf16", "Linear"),
        ("mixed_bf16", "Mlp"),
    ]
    observed = [set(one["precision"]["observed"]["matrix_products"]) for one in receipts]
    assert observed == [{"float32"}, {"float32"}, {"bfloat16"}, {"bfloat16"}]
    assert len({status(run).pid for run in trained(place)}) == 4
    assert all(status(run).state == "FINISHED" for run in runs(place))


def test_the_table_over_the_grid_and_its_best(grid: Done, place: Path) -> None:
    accuracy = {
        (row["precision"], row["model"]): row["test/accuracy"]
        for row in table(grids(place)[0])
        if row["state"] == "done"
    }
    assert len(accuracy) == 4
    lines = grid.stdout.splitlines()
    assert lines[0].split() == ["test/accuracy", "over", "the", "grid,", "columns:", "model"]
    assert lines[1].split() == ["precision", "linear", "mlp"]
    assert lines[3].split() == ["tf32", "skipped", "skipped"]
    shown = {name: line.replace(" *", "*").split()[1:] for line in (lines[2], lines[4]) for name in [line.split()[0]]}
    best = max(accuracy.values(), key=float)
    for (precision, model), value in accuracy.items():
        cell = shown[precision][("linear", "mlp").index(model)]
        assert cell.rstrip("*") == f"{float(value):.4f}"
        assert cell.endswith("*") <= (value == best)
    assert grid.stdout.count(" *") == list(accuracy.values()).count(best)
    assert (grids(place)[0] / "artifacts" / "grid.png").stat().st_size > 5000


def test_mlflow_has_the_cells_below_the_grid(grid: Done, place: Path) -> None:
    from mlflow import MlflowClient

    assert grid.returncode == 0
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    experiment = client.get_experiment_by_name("pipeline")
    assert experiment is not None
    listed = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(listed) == {run.name for run in runs(place)}
    parent = listed[grids(place)[0].name]
    assert {item.path for item in client.list_artifacts(parent.info.run_id)} >= {"grid.csv", "grid.png"}
    assert parent.data.metrics["result/cells/done"] == 4
    for cell in trained(place):
        run = listed[cell.name]
        assert run.info.status == "FINISHED"
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 8
        assert run.data.metrics["result/test/accuracy"] > 0.2
        assert [item.path for item in client.list_artifacts(run.info.run_id, "model")]


def test_the_same_grid_again_runs_nothing(grid: Done, place: Path) -> None:
    before = runs(place)
    words = ("-m", "precision=fp32,tf32,mixed", "model=linear,mlp", *DIGITS)
    again = pipeline(place, *words)
    assert again.returncode == 0, again.stderr
    assert "6 cells: 4 finished before, 2 impossible here" in again.stderr
    assert again.stdout == grid.stdout
    assert runs(place) == before
    dry = pipeline(place, "-m", "seed=0,1", "model=mlp", *DIGITS, "sweep.dry_run=true")
    assert dry.returncode == 0, dry.stderr
    assert "2 cells: 1 to run, 1 finished before" in dry.stdout
    assert "to run: seed=1: new" in dry.stdout
    assert "finished before: seed=0: finished as " in dry.stdout
    assert runs(place) == before


def test_why_a_cell_runs_again(grid: Done, place: Path) -> None:
    assert grid.returncode == 0
    run = trained(place)[0]
    words = ("-m", "model=linear", "precision=fp32,mixed", *DIGITS, "sweep.dry_run=true")
    kept = (run / "receipt.json").read_text()
    for change, reason in (
        ({"code_sha256": "0"}, "the code"),
        ({"data_sha256": "0"}, "the data"),
        ({"versions": {**json.loads(kept)["versions"], "torch": "1.0"}}, "torch 1.0 -> "),
        ({"device": {"hardware": {"name": "an abacus"}}}, "the device (an abacus -> "),
    ):
        (run / "receipt.json").write_text(json.dumps({**json.loads(kept), **change}))
        told = pipeline(place, *words)
        assert f"to run: precision=fp32: changed since {run.name}: {reason}" in told.stdout, told.stdout
        assert "finished before: precision=mixed" in told.stdout
    (run / "receipt.json").write_text(kept)


@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_a_cell_is_the_same_to_the_bit_as_the_run_alone(backend: str, tmp_path: Path) -> None:
    """After a cell of another precision in the same worker."""
    words = (f"backend={backend}", "model=mlp", *QUIET)
    told = pipeline(tmp_path, "-m", "precision=fp64,bf16,fp32", *words)
    assert told.returncode == 0, told.stderr
    cells = {json.loads((run / "receipt.json").read_text())["precision"]["effective"]: run for run in trained(tmp_path)}
    alone = pipeline(tmp_path, "precision=fp32", "output_dir=alone", *words)
    assert alone.returncode == 0, alone.stderr
    (single,) = (tmp_path / "alone").iterdir()
    assert weights(cells["fp32"]) == weights(single)
    results = [json.loads((run / "result.json").read_text())["scalars"] for run in (cells["fp32"], single)]
    assert len({(one["test/loss"], one["test/accuracy"]) for one in results}) == 1
    assert len({weights(run) for run in cells.values()}) == 3


def test_five_bad_cells_of_twenty_cost_no_other(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    environ = {"PIPELINE_MODULES": "planted", "PYTHONPATH": os.pathsep.join([str(tmp_path), *_python_path()])}
    words = ("-m", f"--config-dir={tmp_path / 'conf'}", f"model={','.join(f'n{number}' for number in range(20))}")
    (tmp_path / "conf" / "model").mkdir(parents=True)
    for number in range(20):
        text = f"# planted\n_target_: planted.Planted\nnumber: {number}\n"
        (tmp_path / "conf" / "model" / f"n{number}.yaml").write_text(text)
    told = pipeline(tmp_path, *words, *QUIET, "sweep.timeout=15", **environ)
    assert told.returncode == 1
    rows = {row["model"].removeprefix("n"): row for row in table(grids(tmp_path)[0])}
    assert {number for number, row in rows.items() if row["state"] != "done"} == BAD
    reasons = {number: (rows[number]["state"], rows[number]["reason"]) for number in sorted(BAD, key=int)}
    assert reasons == {
        "3": ("failed", "KeyError: 'planted'"),
        "6": ("failed", "SystemExit: 0"),
        "9": ("killed", "killed by SIGKILL (the system does that when memory runs out)"),
        "12": ("failed", "took longer than sweep.timeout=15 s"),
        "15": ("killed", "its process ended without a word"),
    }
    assert "15 done · 5 failed · 0 skipped" in told.stderr
    assert "Traceback" not in told.stderr
    assert all(status(run).state != "RUNNING" for run in runs(tmp_path))
    assert status(grids(tmp_path)[0]).state == "FAILED"
    again = pipeline(tmp_path, *words, *QUIET, "sweep.timeout=15", "sweep.dry_run=true", **environ)
    assert (
        "20 cells: 2 to run, 15 finished before, 3 failed before" in again.stdout
    )  # the killed run again by themselves
    retried = pipeline(tmp_path, *words, *QUIET, "sweep.retry=failed", "sweep.dry_run=true", **environ)
    assert "20 cells: 5 to run, 15 finished before" in retried.stdout
    assert "to run: model=n3: failed before: KeyError: 'planted'" in retried.stdout


def test_first_cells_that_fail_alike_end_the_sweep(tmp_path: Path) -> None:
    words = ("-m", "seed=range(8)", "training.batch_size=5000", "tracking=none", "dataset=digits")
    told = pipeline(tmp_path, *words)
    assert told.returncode == 1
    assert "gave up: the first 3 cells all failed alike (training.batch_size=5000: larger than" in told.stderr
    assert [row["state"] for row in table(grids(tmp_path)[0])] == ["failed"] * 3 + ["not run"] * 5
    assert len(trained(tmp_path)) == 3


def test_a_worker_killed_in_the_middle(tmp_path: Path) -> None:
    """kill -9 of the worker costs the cell that it ran; the same command again ends with every cell done once."""
    words = ("-m", "seed=range(4)", "model=mlp", "dataset=digits", "training.epochs=40", "tracking=none")
    process = begin(tmp_path, *words)
    wait_until(lambda: len(trained(tmp_path)) == 2 and metrics_of(trained(tmp_path)[1]), process)
    (worker,) = [
        child for child in psutil.Process(process.pid).children() if "pipeline.sweep.worker" in child.cmdline()
    ]
    worker.kill()
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1, err
    assert "its worker: killed by SIGKILL" in err
    states = [row["state"] for row in table(grids(tmp_path)[0])]
    assert states == ["done", "killed", "done", "done"]
    again = pipeline(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert "4 cells: 1 to run, 3 finished before" in again.stderr
    finished = [journals.read_config(run)["seed"] for run in trained(tmp_path) if status(run).state == "FINISHED"]
    assert sorted(finished) == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_stopped_leaves_no_process_and_goes_on_later(number: signal.Signals, tmp_path: Path) -> None:
    words = ("-m", "seed=range(3)", "model=mlp", "dataset=digits", "training.epochs=40", "tracking=none")
    process = begin(tmp_path, *words)
    wait_until(lambda: len(trained(tmp_path)) == 2 and metrics_of(trained(tmp_path)[1]), process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.communicate(timeout=100)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    again = pipeline(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert "3 cells: 2 to run, 1 finished before" in again.stderr
    assert [status(run).state for run in trained(tmp_path)].count("KILLED") == 1
    finished = [journals.read_config(run)["seed"] for run in trained(tmp_path) if status(run).state == "FINISHED"]
    assert sorted(finished) == [0, 1, 2]


def test_two_cells_at_once(tmp_path: Path) -> None:
    told = pipeline(tmp_path, "-m", "seed=range(4)", "sweep.jobs=2", "dataset=digits", "tracking=none")
    assert told.returncode == 0, told.stderr
    spans = [(status(run).started, status(run).ended or 0.0) for run in trained(tmp_path)]
    overlaps = sum(a < d and c < b for i, (a, b) in enumerate(spans) for c, d in spans[i + 1 :])
    assert overlaps >= 1
    most = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
    assert most == 2


def test_repetitions_are_a_median_and_a_range(tmp_path: Path) -> None:
    told = pipeline(tmp_path, "-m", "model=linear,mlp", "seed=range(3)", *QUIET, "sweep.jobs=2")
    assert told.returncode == 0, told.stderr
    line = next(line for line in told.stdout.splitlines() if line.startswith("mlp"))
    values = sorted(float(row["test/accuracy"]) for row in table(grids(tmp_path)[0]) if row["model"] == "mlp")
    assert f"{values[1]:.4f} ({values[0]:.4f} to {values[2]:.4f}, n=3)" in line


def test_a_grid_with_a_mistake_writes_nothing(tmp_path: Path) -> None:
    assert refused(tmp_path, "-m", "model=mlp,cnnn", "seed=1,2").startswith(
        "model=cnnn: no such choice (did you mean cnn?)"
    )
    assert refused(tmp_path, "-m", "modell=mlp,cnn").startswith("modell: no such key (did you mean model?); ")
    assert refused(tmp_path, "-m", "seed=1,2", "seed=3").startswith("seed: set 2 times (seed=1,2, seed=3); ")
    assert refused(tmp_path, "-m", "training.epochs=3,-1").endswith("(cell 2: training.epochs=-1)")
    assert refused(tmp_path, "-m", "sweep.timeout=1,2") == "sweep.timeout: holds for the whole grid; give it one value"
    assert refused(tmp_path, "sweep.timeout=1") == "sweep.timeout=1: this is about grids; add -m"
    assert refused(tmp_path, "-m", "seed=range(0)") == "seed=range(0): no value at all, so no cell"
    assert refused(tmp_path, "-m", "precision=tf32", "seed=1,2").startswith(
        "none of the 2 cells can run here; the first"
    )
    assert refused(tmp_path, "-m", "precision=fp32,tf32", "sweep.impossible=fail").endswith(
        "(cell 2: precision=tf32); sweep.impossible=skip leaves it out"
    )
    assert refused(tmp_path, "-m", "stage=devices", "backend=torch,jax").endswith("run it alone, without -m")
    assert list(tmp_path.iterdir()) == []


def test_devices_of_a_grid_in_any_notation(tmp_path: Path) -> None:
    told = pipeline(tmp_path, "-m", "device=/CPU:0,/device:GPU:0", "model=linear", *QUIET)
    assert told.returncode == 0, told.stderr
    assert "impossible here: device=gpu:0: device=gpu:0: no NVIDIA GPU found on this machine" in told.stderr
    assert [journals.read_config(run)["device"]["name"] for run in trained(tmp_path)] == ["cpu"]


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*COMMAND, *arguments], cwd=folder, env=environment(), start_new_session=True, **pipes)


def metrics_of(run: Path) -> bool:
    return len(list(journals.read_metrics(run))) > 3


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 200
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
