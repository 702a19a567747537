"""`-m`: each cell in its own process; nothing leaks, what fails costs no other, what is done stays done."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import DIGITS, Done, done, environment, pipeline, refused, runs, status
from own_tasks import Counting
from rich.console import Console

from pipeline.datasets.digits import Digits
from pipeline.experiment.settings import Inputs
from pipeline.report.table import show_table
from pipeline.runs.records import read_config, read_metrics
from pipeline.runs.result import read_result
from pipeline.sweep.history import History
from pipeline.sweep.plan import varied_by

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
    """The grid of the README, on the digits, with a precision that no CPU has, and a setting without an effect."""
    unread = ("training.monitor=validation/loss", "training.patience=null")  # the defaults
    return pipeline(place, "-m", "precision=mixed,tf32,fp32", "model=linear,mlp", *DIGITS, *unread, "tracking.wait=600")


def test_each_cell_is_a_run_and_the_impossible_are_named(grid: Done, place: Path) -> None:
    assert grid.returncode == 0, grid.stderr
    assert "6 cells: 4 to run, 2 impossible here" in grid.stderr
    assert "impossible here: precision=tf32 model=linear and 1 more: precision=tf32 with backend=torch" in grid.stderr
    assert "4 done · 0 failed · 2 skipped · 0 running · 0 waiting" in grid.stderr
    assert "\n4 of 4 cells: training.monitor=validation/loss: has no effect without early stopping" in grid.stderr
    runs_by_cell = {}  # two that begin in the same second are listed by their names
    for run in trained(place):
        receipt = json.loads((run / "receipt.json").read_text())
        model = read_config(run)["model"]["_target_"].rpartition(".")[2]
        runs_by_cell[receipt["precision"]["effective"], model] = receipt["precision"]["observed"]["matrix_products"]
    assert {cell: set(seen) for cell, seen in runs_by_cell.items()} == {
        ("fp32", "Linear"): {"float32"},
        ("fp32", "Mlp"): {"float32"},
        ("mixed_bf16", "Linear"): {"bfloat16"},
        ("mixed_bf16", "Mlp"): {"bfloat16"},
    }
    assert len({status(run).pid for run in trained(place)}) == 4
    assert all(status(run).state == "FINISHED" for run in runs(place))


def test_the_table_over_the_grid_and_its_best(grid: Done, place: Path) -> None:
    rows = {(row["precision"], row["model"]): row for row in table(grids(place)[0]) if row["state"] == "done"}
    assert len(rows) == 4
    lines, result, printed = grid.stdout.splitlines(), read_result(grids(place)[0]), io.StringIO()
    assert result is not None
    show_table(Console(width=200, file=printed), result.tables[0])
    kept = [*printed.getvalue().splitlines(), *result.notes]
    assert kept[: len(lines)] == lines
    assert all(f"\n{note}\n" in grid.stderr for note in kept[len(lines) :])  # what the cells note
    assert lines[0].split() == ["test/accuracy", "over", "the", "grid,", "columns:", "model"]
    assert lines[1].split() == ["precision", "linear", "mlp"]
    assert lines[3].split() == ["tf32", "skipped", "skipped"]
    shown = {name: line.replace(" *", "*").split()[1:] for line in (lines[2], lines[4]) for name in [line.split()[0]]}
    best = max(float(row["validation/accuracy"]) for row in rows.values())
    for (precision, model), row in rows.items():
        cell = shown[precision][("linear", "mlp").index(model)]
        assert cell.rstrip("*") == f"{float(row['test/accuracy']):.4f}"
        assert cell.endswith("*") == (float(row["validation/accuracy"]) == best)
    equal = ", several being equal," * (sum(cell.endswith("*") for row in shown.values() for cell in row) > 1)
    assert lines[5] == f"* the best{equal} by validation/accuracy of the weights that were kept"
    for run in trained(place):
        epochs = [record.metrics for record in read_metrics(run) if "validation/accuracy" in record.metrics]
        (row,) = (row for row in rows.values() if row["run"] == run.name)
        assert float(row["validation/accuracy"]) == epochs[-1]["validation/accuracy"]
        wall_s = json.loads((run / "receipt.json").read_text())["wall_time_s"]
        assert float(row["seconds"]) == pytest.approx(wall_s, abs=1e-3)  # it was less than that
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


def test_data_that_the_seed_decides_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """Read once where they are the same for every seed; the second cell was trained anew each time."""
    history, read = History(tmp_path), list[int]()

    def cell(dataset: Any, seed: int) -> Any:
        def load(root: Path, seed: int) -> Any:
            read.append(seed)
            return dataset.load(root, seed)

        source = SimpleNamespace(load=load, cache=tmp_path)
        stage = SimpleNamespace(data_sha256=lambda _: None)
        config = {"dataset": {"name": type(dataset).__name__}}
        return SimpleNamespace(
            stage=stage, dataset=dataset, data_source=source, seed=seed, config=config, inputs=Inputs()
        )

    for dataset, reads in ((Counting(), [0, 1, 2]), (Digits(), [0])):
        read.clear()
        hashes = [dataset.load(tmp_path, seed).sha256 for seed in (0, 1, 2)]
        assert len(set(hashes)) == len(reads)
        for seed, sha256 in enumerate(hashes):
            assert history._same_data(cell(dataset, seed), sha256)
        assert read == reads
        assert not history._same_data(cell(dataset, 1), "another")
        assert not history._same_data(cell(dataset, 5), "another") and not history._same_data(
            cell(dataset, 6), "another"
        )
        assert read == [*reads, *([5, 6] if len(reads) > 1 else [1])]  # of that which is one for two seeds no more


def test_the_same_grid_again_runs_nothing(grid: Done, place: Path) -> None:
    before = runs(place)
    words = ("-m", "precision=mixed,tf32,fp32", "model=linear,mlp", *DIGITS)
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


# The real command, killed as it draws its figure.
KILLED = """
import os, signal
from pipeline.sweep import summary
summary.draw = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

from pipeline.__main__ import main
main()
"""


@pytest.mark.wide
def test_a_grid_that_was_killed_after_its_last_cell_is_written_by_the_same_command(tmp_path: Path) -> None:
    """It said that all cells had finished before, and there was no result of the grid, nor a figure, for ever."""
    words = ("-m", "seed=0,1", "model=linear", *QUIET)
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, *words], cwd=tmp_path, env=environment(), capture_output=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    (killed,) = grids(tmp_path)
    again = pipeline(tmp_path, *words)
    assert again.returncode == 0, again.stderr
    assert f"2 cells: 2 finished before\n{killed.name} was killed before it had written all" in again.stderr
    (written,) = set(grids(tmp_path)) - {killed}
    assert (status(killed).state, status(written).state) == ("KILLED", "FINISHED")
    assert [(row["run"], row["test/accuracy"]) for row in table(written)] == [
        (row["run"], row["test/accuracy"]) for row in table(killed)
    ]
    assert {"grid.csv", "grid.png"} <= {file.name for file in (written / "artifacts").iterdir()}
    before = runs(tmp_path)
    assert pipeline(tmp_path, *words).stdout == again.stdout
    assert runs(tmp_path) == before


def other_stepping(kept: str) -> dict[str, Any]:
    """The device of a receipt, but for the processor's stepping."""
    device = json.loads(kept)["device"]
    return {"device": {**device, "hardware": {**device["hardware"], "stepping": "99"}}}


@pytest.mark.wide
def test_why_a_cell_runs_again(grid: Done, place: Path) -> None:
    assert grid.returncode == 0
    (run,) = (one for one in trained(place) if status(one).name == "linear-digits-torch-fp32")
    words = ("-m", "model=linear", "precision=fp32,mixed", *DIGITS, "sweep.dry_run=true")
    kept = (run / "receipt.json").read_text()
    for change, reason in (
        ({"code_sha256": "0"}, "the code"),
        ({"data_sha256": "0"}, "the data"),
        ({"versions": {**json.loads(kept)["versions"], "torch": "1.0"}}, "torch 1.0 -> "),
        ({"device": {"hardware": {"name": "an abacus"}}}, "the device (an abacus -> "),
        (
            {"environment": {**json.loads(kept)["environment"], "XLA_FLAGS": "--fast"}, **other_stepping(kept)},
            "XLA_FLAGS --fast -> unset, the device (",
        ),
    ):
        (run / "receipt.json").write_text(json.dumps({**json.loads(kept), **change}))
        result = pipeline(place, *words)
        assert f"to run: precision=fp32: changed since {run.name}: {reason}" in result.stdout, result.stdout
        assert "finished before: precision=mixed" in result.stdout
    (run / "receipt.json").write_text(kept)


def test_a_cell_is_the_same_to_the_bit_as_the_run_alone(grid: Done, place: Path) -> None:
    """After cells of another precision in the same worker."""
    assert grid.returncode == 0, grid.stderr
    same_as_alone(place, [run for run in trained(place) if read_config(run)["model"]["_target_"].endswith(".Mlp")])


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_so_is_a_cell_of_another_backend(backend: str, tmp_path: Path) -> None:
    words = (f"backend={backend}", "model=mlp")
    result = pipeline(tmp_path, "-m", "precision=fp64,bf16,fp32", *words, *QUIET)
    assert result.returncode == 0, result.stderr
    same_as_alone(tmp_path, trained(tmp_path), f"backend={backend}")


def same_as_alone(folder: Path, found: list[Path], *words: str) -> None:
    """Of cells with an MLP that in fp32 has the result and the receipt of the same experiment without a grid."""
    cells = {json.loads((run / "receipt.json").read_text())["precision"]["effective"]: run for run in found}
    alone = pipeline(folder, "precision=fp32", "model=mlp", "output_dir=alone", *words, *QUIET)
    assert alone.returncode == 0, alone.stderr
    (single,) = (folder / "alone").iterdir()
    assert weights(cells["fp32"]) == weights(single)
    assert len({weights(run) for run in cells.values()}) == len(cells) > 1
    results = [json.loads((run / "result.json").read_text())["scalars"] for run in (cells["fp32"], single)]
    assert len({(one["test/loss"], one["test/accuracy"]) for one in results}) == 1
    receipts = [json.loads((run / "receipt.json").read_text()) for run in (cells["fp32"], single)]
    for part in ("environment", "versions", "device", "git"):
        assert receipts[0][part] == receipts[1][part]


@pytest.mark.wide
def test_a_grid_over_groups_notes_what_one_of_them_does_not_read(tmp_path: Path) -> None:
    words = ("-m", "optimizer=adamw,sgd", "optimizer.decay=matrices,all", "model=linear", *QUIET)
    result = pipeline(tmp_path, *words, "training.steps=2")
    assert result.returncode == 0, result.stderr
    (note,) = (line for line in result.stderr.splitlines() if line.startswith("1 of 4 cells "))
    assert note == (
        "1 of 4 cells (optimizer=sgd optimizer.decay=matrices): optimizer.decay=matrices: nothing decays with "
        "optimizer.weight_decay=0"
    )


@pytest.mark.wide
def test_two_cells_at_once(tmp_path: Path) -> None:
    result = pipeline(tmp_path, "-m", "seed=range(4)", "sweep.jobs=2", "dataset=digits", "tracking=none")
    assert result.returncode == 0, result.stderr
    spans = [(status(run).started, status(run).ended or 0.0) for run in trained(tmp_path)]
    overlaps = sum(a < d and c < b for i, (a, b) in enumerate(spans) for c, d in spans[i + 1 :])
    assert overlaps >= 1
    most = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
    assert most == 2
    assert result.stdout.splitlines()[-1].startswith("median  ") and result.stdout.rstrip().endswith("n=4)")
    assert "*" not in result.stdout  # no seed is the best


@pytest.mark.wide
def test_repetitions_are_a_median_and_a_range(tmp_path: Path) -> None:
    result = pipeline(
        tmp_path, "-m", "model=linear,mlp", "seed=range(3)", *QUIET, "sweep.jobs=2", "name=mine", "training.ema=0.99999"
    )
    assert result.returncode == 0, result.stderr
    assert "\n6 of 6 cells: training.ema=0.99999: averages over about 100,000 steps, " in result.stderr
    (grid,) = (run for run in runs(tmp_path) if run not in trained(tmp_path))
    assert status(grid).name == "mine"
    named = {f"mine-{model}-{seed}" for model in ("linear", "mlp") for seed in range(3)}
    assert {status(run).name for run in trained(tmp_path)} == named
    line = next(line for line in result.stdout.splitlines() if line.startswith("mlp"))
    values = sorted(float(row["test/accuracy"]) for row in table(grid) if row["model"] == "mlp")
    assert f"{values[1]:.4f} ({values[0]:.4f} to {values[2]:.4f}, n=3)" in line


@pytest.mark.wide
def test_what_cells_note_is_kept_and_said_of_those_that_ran_before_too(tmp_path: Path) -> None:
    """Notes of cells that ran in the command were said, and kept nowhere: a grid with a leak, repeated, was silent."""
    words = ("model=linear", "dataset=digits", "training.epochs=2", "training.ema=0.99999")
    done(tmp_path, *words, "seed=0")
    result = pipeline(tmp_path, "-m", *words, "seed=0,1")
    (note,) = (line for line in result.stderr.splitlines() if line.startswith("2 of 2 cells: training.ema=0.99999: "))
    (grid,) = grids(tmp_path)
    assert note in json.loads((grid / "result.json").read_text())["notes"]
    assert note in pipeline(tmp_path, "stage=show", f"run={grid.name}").stdout
    assert note in pipeline(tmp_path, "-m", *words, "seed=0,1").stderr  # which runs nothing


@pytest.mark.wide
def test_a_table_with_rates_says_what_they_are_of(tmp_path: Path) -> None:
    """A grid of single epochs showed rates of a cold start as any others, and so did one with two cells at a time."""
    words = ("-m", "seed=0,1", "model=linear", "dataset=digits")
    cold = pipeline(tmp_path, *words, "training.epochs=1").stderr.splitlines()
    assert "the rates of 2 of 2 cells are of one epoch, which starts cold; train for two or more" in cold
    two = pipeline(tmp_path, *words, "training.epochs=60", "sweep.jobs=2", "training.batch_size=8").stderr.splitlines()
    slowed = r"other processes had \d+% of the cores at most, in 2 of 2 cells, which slowed them"
    assert any(re.fullmatch(slowed, line) for line in two), two
    assert not any("starts cold" in line for line in two)


@pytest.mark.wide
def test_a_number_written_in_two_ways_is_one_cell(tmp_path: Path) -> None:
    words = ("model=linear", *QUIET)
    result = pipeline(tmp_path, "-m", "optimizer.learning_rate=1,1.0", "seed=0,1", *words)
    assert result.returncode == 0, result.stderr
    assert (
        "optimizer.learning_rate=1.0 seed=0: the same settings as optimizer.learning_rate=1 seed=0; runs once\n"
        in result.stderr
    )
    assert "2 cells: 2 to run" in result.stderr
    assert len(trained(tmp_path)) == 2
    again = pipeline(tmp_path, "-m", "optimizer.learning_rate=1.0", "seed=0,1", *words, "sweep.dry_run=true")
    assert "2 cells: 2 finished before" in again.stdout
    profiled = pipeline(tmp_path, "-m", "profiler=none,torch", *words, "sweep.dry_run=true")
    assert "2 cells: 2 to run" in profiled.stdout  # one hash


def test_an_added_key_is_named_without_its_plus() -> None:
    words = ["+stage.arguments.rate=0.1", "++stage.arguments.width=4", "model=mlp", "name=a\\:b=+c", "~stage.epochs"]
    assert varied_by(words) == {
        "stage.arguments.rate": "0.1",
        "stage.arguments.width": "4",
        "model": "mlp",
        "name": "a:b=+c",
    }


def test_a_grid_with_a_mistake_writes_nothing(tmp_path: Path) -> None:
    assert refused(tmp_path, "-m", "model=mlp,cnnn", "seed=1,2").startswith(
        "model=cnnn: no such choice (did you mean cnn?)"
    )
    assert refused(tmp_path, "-m", "modell=mlp,cnn").startswith("modell: no such key (did you mean model?); ")
    assert refused(tmp_path, "-m", "seed=1,2", "seed=3").startswith("seed: set 2 times (seed=1,2, seed=3); ")
    assert refused(tmp_path, "-m", "training.epochs=3,-1").endswith("(cell 2: training.epochs=-1)")


@pytest.mark.wide
def test_a_mistake_of_one_cell_names_the_cell(tmp_path: Path) -> None:
    long = refused(tmp_path, "-m", "schedule=cosine,step", "training.steps=10")  # known without the data
    assert long.endswith(
        "choose fewer steps, such as schedule.every=1, or train longer, by training.steps=1001 or more "
        "(cell 2: schedule=step)"
    )
    lacking = refused(tmp_path, "-m", "model=mlp,linear", "model.units=[8],[16]")
    assert lacking.startswith("model.units: no such key") and lacking.endswith("(cell 3: model=linear model.units=[8])")
    unknown = refused(tmp_path, "-m", "optimizer=adamw,sgd", "optimizer.decay=some")  # the default has no such key
    assert unknown == "optimizer.decay='some': should be 'all' or 'matrices' (cell 1: optimizer=adamw)"
    assert refused(tmp_path, "-m", "sweep.timeout=1,2") == "sweep.timeout: holds for the whole grid; give it one value"
    sought = ("seed=1,2", *DIGITS, "sweep.best=test/acuracy")
    assert refused(tmp_path, "-m", *sought).startswith(
        "sweep.best=test/acuracy: no such choice (did you mean test/accuracy?); "
    )
    assert refused(tmp_path, "-m", "seed=1,2", *DIGITS, "sweep.best=test/loss", "sweep.direction=maximize") == (
        "sweep.direction=maximize with sweep.best=test/loss: less is better; use sweep.direction=minimize"
    )
    assert refused(tmp_path, "-m", "seed=1,2", "sweep.direction=maximize").startswith("sweep.direction=maximize: of ")
    assert refused(tmp_path, "sweep.timeout=1") == "sweep.timeout=1: this is for grids; add -m"
    assert (
        refused(tmp_path, "hydra.mode=MULTIRUN") == "hydra.mode=MULTIRUN: cannot be set; -m makes a grid of the values"
    )
    assert refused(tmp_path, "-m", "seed=range(0)") == "seed=range(0): no values, so there are no cells"
    assert refused(tmp_path, "-m", "precision=tf32", "seed=1,2").startswith(
        "none of the 2 cells can run here; the first"
    )
    assert refused(tmp_path, "-m", "precision=fp32,tf32", "sweep.impossible=fail").endswith(
        "(cell 2: precision=tf32); sweep.impossible=skip leaves it out"
    )
    assert refused(tmp_path, "-m", "stage=devices", "backend=torch,jax").endswith("run it alone, without -m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.wide
def test_devices_of_a_grid_in_any_notation(tmp_path: Path) -> None:
    result = pipeline(tmp_path, "-m", "device=/CPU:0,/device:GPU:0", "model=linear", *QUIET)
    assert result.returncode == 0, result.stderr
    assert "impossible here: device=gpu:0: device=gpu:0: no NVIDIA GPU found on this machine" in result.stderr
    assert [read_config(run)["device"]["name"] for run in trained(tmp_path)] == ["cpu"]


@pytest.mark.wide
def test_cells_that_differ_in_what_no_result_depends_on_are_measured_each(tmp_path: Path) -> None:
    """The second took the first's rate: what writing checkpoints costs came out as nothing."""
    words = ("-m", "training.checkpoint.every=null,1", *QUIET)
    for _ in range(2):  # the second time, each has its own run
        result = pipeline(tmp_path, *words)
        assert result.returncode == 0, result.stderr
        assert len(trained(tmp_path)) == 2
        assert len({row["run"] for row in table(grids(tmp_path)[-1])}) == 2
