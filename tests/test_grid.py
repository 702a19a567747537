"""`-m`: every combination in a process of its own; what fails costs no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import DIGITS, Done, pipeline, refused, runs, status

from pipeline import journal as journals


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("grid")


@pytest.fixture(scope="module")
def grid(place: Path) -> Done:
    """The grid of the README, on the digits."""
    return pipeline(place, "-m", "precision=fp32,mixed", "model=linear,mlp", *DIGITS, "tracking.wait=100")


def test_four_cells_are_four_runs(grid: Done, place: Path) -> None:
    assert grid.returncode == 0, grid.stderr
    assert "4 of 4 cells done" in grid.stderr
    found = [json.loads((run / "receipt.json").read_text())["precision"] for run in runs(place)]
    names = [journals.read_config(run)["model"]["_target_"].rpartition(".")[2] for run in runs(place)]
    assert [(one["requested"], one["effective"], name) for one, name in zip(found, names, strict=True)] == [
        ("fp32", "fp32", "Linear"),
        ("fp32", "fp32", "Mlp"),
        ("mixed", "mixed_bf16", "Linear"),
        ("mixed", "mixed_bf16", "Mlp"),
    ]
    assert [set(one["observed"]["matrix_products"]) for one in found] == [
        {"float32"},
        {"float32"},
        {"bfloat16"},
        {"bfloat16"},
    ]
    assert all(status(run).state == "FINISHED" for run in runs(place))
    assert len({status(run).pid for run in runs(place)}) == 4
    shown = [line.split()[0] for line in grid.stdout.splitlines() if "-digits-torch-" in line and "runs/" not in line]
    assert shown == [status(run).name for run in runs(place)]


def test_mlflow_lists_the_cells(grid: Done, place: Path) -> None:
    from mlflow import MlflowClient

    assert grid.returncode == 0
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    experiment = client.get_experiment_by_name("pipeline")
    assert experiment is not None
    listed = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])
    assert [(run.info.run_name, run.info.status) for run in listed] == [(run.name, "FINISHED") for run in runs(place)]
    for run in listed:
        assert run.data.params["training.epochs"] == "2"
        assert len(client.get_metric_history(run.info.run_id, "train/loss")) == 8
        assert run.data.metrics["result/test/accuracy"] > 0.2
        assert [item.path for item in client.list_artifacts(run.info.run_id, "model")]
    best = client.search_runs(
        [experiment.experiment_id], "params.`model` = 'Mlp'", order_by=["metrics.`result/test/loss`"]
    )
    assert len(best) == 2


def test_cells_that_fail_cost_no_other(tmp_path: Path) -> None:
    told = pipeline(tmp_path, "-m", "backend=torch,jax", "loader=tfdata,threads", *DIGITS, "tracking=none")
    assert told.returncode == 1
    assert "Traceback" not in told.stderr
    assert "2 of 4 cells done" in told.stderr
    for backend in ("torch", "jax"):
        words = " ".join(DIGITS)
        assert f"failed (exit 2): backend={backend} loader=tfdata {words} tracking=none" in told.stderr
        assert f"error: loader=tfdata with backend={backend}: this loader feeds tensorflow" in told.stderr
    receipts = [json.loads((run / "receipt.json").read_text()) for run in runs(tmp_path)]
    assert [receipt["backend"] for receipt in receipts] == ["torch", "jax"]
    accuracies = [json.loads((run / "result.json").read_text())["scalars"]["test/accuracy"] for run in runs(tmp_path)]
    assert abs(accuracies[0] - accuracies[1]) < 0.02


def test_a_grid_with_a_mistake_writes_nothing(tmp_path: Path) -> None:
    assert refused(tmp_path, "-m", "model=mlp,cnnn", "seed=1,2").startswith(
        "model=cnnn: no such choice (did you mean cnn?)"
    )
    assert refused(tmp_path, "-m", "modell=mlp,cnn").startswith("modell: no such key (did you mean model?); ")
    assert refused(tmp_path, "-m", "seed=1,2", "seed=3").startswith("seed: set 2 times (seed=1,2, seed=3); ")
    assert list(tmp_path.iterdir()) == []


def test_devices_of_a_grid_in_any_notation(tmp_path: Path) -> None:
    """Both cells fail, at different places: the one for its batch size, the other for its device."""
    wanted = ("device=/CPU:0,/device:GPU:0", "dataset=digits", "training.batch_size=5000", "tracking=none")
    told = pipeline(tmp_path, "-m", *wanted)
    assert told.returncode == 1
    assert "error: training.batch_size=5000: larger than" in told.stderr
    assert "error: device=gpu:0: no NVIDIA GPU found on this machine" in told.stderr
    assert "0 of 2 cells done" in told.stderr
    assert [journals.read_config(run)["device"]["name"] for run in runs(tmp_path)] == ["cpu"]
