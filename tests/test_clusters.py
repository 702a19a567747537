"""The grid on a cluster's launchers: submitit's local executor, and a Ray head on the loopback address."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import environment, pipeline, refused, runs, status
from test_sweep import grids, table, trained, weights
from test_sweep_failures import begin, metrics_of, wait_until

from pipeline.errors import UserError
from pipeline.sweep.submitit_jobs import executor

QUIET = ("dataset=digits", "training=quick", "training.batch_size=32", "tracking=none")
ON_A_CLUSTER = (pytest.mark.wide, pytest.mark.cluster)


@pytest.fixture(scope="module")
def ray_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ray_cluster(tmp_path_factory, RAY_AUTH_MODE="disabled") as address:  # whoever has left a token at home
        yield address


@contextmanager
def ray_cluster(tmp_path_factory: pytest.TempPathFactory, **changes: str) -> Iterator[str]:
    """A Ray cluster of one machine, begun by Ray's own command."""
    ray = Path(sys.executable).with_name("ray")
    port = free_port()
    place = f"--temp-dir={tmp_path_factory.mktemp('ray')}"
    words = ["--node-ip-address=127.0.0.1", "--include-dashboard=false", "--num-cpus=2", "--disable-usage-stats", place]
    started = subprocess.run(
        [str(ray), "start", "--head", f"--port={port}", "--object-store-memory=80000000", *words],
        env=environment(**changes),
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 0, started.stderr
    yield f"127.0.0.1:{port}"
    subprocess.run([str(ray), "stop", "--force"], capture_output=True, check=False)


@pytest.mark.wide
@pytest.mark.cluster
def test_a_cluster_that_wants_a_token(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """As `ray start` does wherever Ray has ever been at work, since it leaves a token at home."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("0123456789abcdef" * 4)
    home = {"HOME": str(tmp_path)}
    with ray_cluster(tmp_path_factory, **home) as address:
        words = ("-m", "hydra/launcher=ray", f"hydra.launcher.address={address}", "seed=0,1", *QUIET)
        said = pipeline(tmp_path, *words, **home)  # Ray's own library writes to stderr, too
        assert said.returncode == 2
        assert said.stderr.rstrip().endswith("; a cluster that wants a token is given it with RAY_AUTH_MODE=token")
        result = pipeline(tmp_path, *words, **home, RAY_AUTH_MODE="token")
        assert result.returncode == 0, result.stderr
        assert "2 done · 0 failed" in result.stderr


@pytest.mark.wide
@pytest.mark.cluster
def test_a_grid_whose_ray_is_gone_ends_and_goes_on_when_there_is_one_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Ray ended the command after a minute, without a word of what to do, and left the grid as running."""
    words = (
        *("-m", "hydra/launcher=ray", "seed=0,1,2", "dataset=digits", "model=linear", "training.steps=30000"),
        *("training.validate_every=10000", "training.checkpoint.every=200", "backend.threads=1"),
    )
    known = {"RAY_AUTH_MODE": "disabled"}
    with ray_cluster(tmp_path_factory, **known) as address:
        process = begin(tmp_path, *words, f"hydra.launcher.address={address}", "tracking=none", **known)
        wait_until(lambda: list(tmp_path.glob("runs/*/checkpoints/step-*")), process)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1, err
    assert f"error: hydra.launcher.address={address}: the head of the Ray cluster is gone (" in err
    assert "the same command resumes them" in err
    assert "RUNNING" not in [status(run).state for run in runs(tmp_path)]
    with ray_cluster(tmp_path_factory, **known) as address:
        again = pipeline(tmp_path, *words, f"hydra.launcher.address={address}", **known)
    assert again.returncode == 0, again.stderr
    assert "3 done · 0 failed" in again.stderr
    assert len(trained(tmp_path)) == 3


@pytest.mark.wide
@pytest.mark.cluster
def test_cells_that_are_lost_with_a_node_of_ray_do_not_end_the_grid(tmp_path: Path, ray_address: str) -> None:
    """Three at once were three that failed alike."""
    words = ("-m", "hydra/launcher=ray", "seed=range(4)", "dataset=digits", "model=linear", "training.steps=30000")
    asked = ("backend.threads=1", "tracking=none", "hydra.launcher.cpus=3", f"hydra.launcher.address={ray_address}")
    node = second_node(ray_address)  # the first has two cores
    process = begin(tmp_path, *words, *asked, RAY_AUTH_MODE="disabled")
    wait_until(lambda: sum(metrics_of(run) for run in trained(tmp_path)) == 3, process)
    os.kill(node, signal.SIGKILL)
    wait_until(lambda: [status(run).state for run in trained(tmp_path)] == ["KILLED"] * 3, process)
    second_node(ray_address)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1, err
    assert "1 done · 0 failed · 3 killed" in err and "gave up" not in err
    reasons = {status(run).error for run in trained(tmp_path)}
    assert reasons == {None, "its Ray task: the node on which it ran is gone"}


def second_node(address: str) -> int:
    """The process of another node on this machine, with nine cores; it ends with the cluster."""
    words = (f"--address={address}", "--num-cpus=9", "--node-name=second", "--object-store-memory=80000000")
    ray = Path(sys.executable).with_name("ray")
    subprocess.run([ray, "start", *words], env=environment(RAY_AUTH_MODE="disabled"), capture_output=True, check=True)
    found = subprocess.run(["pgrep", "-f", "raylet/raylet .*second"], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])


@pytest.mark.parametrize("launcher", ["submitit_local", pytest.param("ray", marks=ON_A_CLUSTER)])
@pytest.mark.wide
def test_ledger_failures_and_resume_are_those_of_a_grid_here(
    launcher: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    words = ["-m", f"hydra/launcher={launcher}", "seed=0,1", "dataset.train_size=20,200", *QUIET]
    if launcher == "ray":
        words.append(f"hydra.launcher.address={request.getfixturevalue('ray_address')}")
    result = pipeline(tmp_path, *words)
    assert result.returncode == 1
    assert "2 done · 2 failed · 0 skipped" in result.stderr, result.stderr
    rows = table(grids(tmp_path)[0])
    assert [(row["dataset.train_size"], row["state"]) for row in rows] == [("20", "failed"), ("200", "done")] * 2
    assert rows[0]["reason"].startswith("training.batch_size=32: larger than the 20 training examples")
    assert {status(run).state for run in trained(tmp_path)} == {"FINISHED", "FAILED"}
    again = pipeline(tmp_path, *words)
    assert "4 cells: 2 finished before, 2 failed before" in again.stderr
    assert len(trained(tmp_path)) == 4
    alone = pipeline(tmp_path, "seed=1", "dataset.train_size=200", "output_dir=alone", *QUIET)
    assert alone.returncode == 0, alone.stderr
    (single,) = (tmp_path / "alone").iterdir()
    cell = next(run for run in trained(tmp_path) if run.name == rows[3]["run"])
    assert weights(cell) == weights(single)


# The real command. A signal arrives while it starts its second cell, while both train, or while it sees the first end.
STOPPED = """
import os, signal, sys
from pipeline.sweep.schedule import Schedule
from pipeline.sweep.ledger import Ledger

def interrupt(owner, name, call):
    whole, calls = getattr(owner, name), []
    def interrupted(*arguments):
        calls.append(name)
        if len(calls) == call:
            os.kill(os.getpid(), getattr(signal, os.environ["STOP_BY"]))
        return whole(*arguments)
    setattr(owner, name, interrupted)

moments = {"starts": (Ledger, "started", 2), "trains": (Ledger, "became", 2), "ends": (Schedule, "_end", 1)}
interrupt(*moments[os.environ["STOP_WHEN_A_CELL"]])
from pipeline.__main__ import main
sys.exit(main())
"""


ANEW = "runs all cells again, from their beginnings"
KILLED = ("0 done · 0 failed · 2 killed · 0 skipped · 0 running · 0 waiting", "resumes", ["killed", "killed"])
LONG = ("sweep.jobs=2", "training.epochs=100000")  # a cell that ends by itself before it hears the stop is done
MOMENTS: dict[str, tuple[tuple[str, ...], tuple[str, str, list[str]]]] = {
    "starts": (LONG, KILLED),
    "trains": (LONG, KILLED),
    "ends": (
        ("sweep.jobs=1", "sweep.retry=all"),
        ("1 done · 0 failed · 0 skipped · 0 running · 1 waiting", ANEW, ["done", "not run"]),
    ),
}


@pytest.mark.parametrize(
    ("launcher", "when", "by"),
    [
        ("workers", "starts", "SIGINT"),
        ("submitit_local", "starts", "SIGINT"),
        pytest.param("ray", "starts", "SIGINT", marks=ON_A_CLUSTER),
        pytest.param("ray", "trains", "SIGINT", marks=ON_A_CLUSTER),
        pytest.param("ray", "trains", "SIGTERM", marks=ON_A_CLUSTER),
        ("workers", "ends", "SIGINT"),
    ],
)
@pytest.mark.wide
def test_a_stop_at_every_moment_of_a_cell(
    launcher: str, when: str, by: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sweep, (counts, again, states) = MOMENTS[when]
    words = ["-m", f"hydra/launcher={launcher}", "seed=0,1", *sweep, *QUIET]
    if launcher == "ray":
        words.append(f"hydra.launcher.address={request.getfixturevalue('ray_address')}")
    result = subprocess.run(
        [sys.executable, "-c", STOPPED, *words],
        cwd=tmp_path,
        env=environment(STOP_WHEN_A_CELL=when, STOP_BY=by),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 128 + signal.Signals[by], result.stderr
    assert "Traceback" not in result.stderr
    assert counts in result.stderr and f"; the same command {again}" in result.stderr, result.stderr
    (grid,) = grids(tmp_path)
    assert status(grid).state == "KILLED"
    assert [row["state"] for row in table(grid)] == states
    assert not [run.name for run in trained(tmp_path) if status(run).state == "RUNNING"]


@pytest.mark.wide
@pytest.mark.cluster
def test_what_no_node_of_ray_has_is_said(tmp_path: Path, ray_address: str) -> None:
    """Its cells wait: a node that has it may join."""
    words = ("-m", "hydra/launcher=ray", f"hydra.launcher.address={ray_address}", "hydra.launcher.gpus=1", "seed=0,1")
    process = begin(tmp_path, *words, *QUIET, RAY_AUTH_MODE="disabled")
    assert process.stderr is not None
    said = [process.stderr.readline() for _ in range(2)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=600)
    asked = "hydra.launcher.cpus=1 and hydra.launcher.gpus=1"
    assert said[1] == f"no node of the Ray cluster has {asked}: the cells wait until one joins it\n"


@pytest.mark.wide
def test_a_job_that_takes_too_long_is_cancelled(tmp_path: Path) -> None:
    words = ("hydra/launcher=submitit_local", "dataset=digits", "training.epochs=100000", "tracking=none")
    result = pipeline(tmp_path, "-m", *words, "seed=0,1", "sweep.timeout=2", "sweep.jobs=2")
    assert result.returncode == 1, result.stderr
    assert [row["reason"] for row in table(grids(tmp_path)[0])] == ["took longer than sweep.timeout=2 s"] * 2
    assert [status(run).state for run in trained(tmp_path)] == ["FAILED"] * 2
    pids = [status(run).pid for run in trained(tmp_path)]
    deadline = time.monotonic() + 600  # a job's last status is written before its process is gone
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.wide
def test_cells_that_meet_a_cold_database_lose_nothing(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    words = ("dataset=digits", "training=quick", "tracking.wait=600")
    result = pipeline(tmp_path, "-m", "seed=range(8)", "model=linear", "sweep.jobs=8", *words)
    assert result.returncode == 0, result.stderr
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("pipeline")
    assert experiment is not None
    listed = client.search_runs([experiment.experiment_id])
    assert {run.info.run_name for run in listed} == {run.name for run in runs(tmp_path)}
    assert len(listed) == 9
    for run in trained(tmp_path):
        lines = sum("train/loss" in line for line in (run / "metrics.jsonl").read_text().splitlines())
        (found,) = [one for one in listed if one.info.run_name == run.name]
        assert len(client.get_metric_history(found.info.run_id, "train/loss")) == lines > 0
        assert json.loads((run / "mlflow.json").read_text())["synced"]


def test_what_a_cluster_lacks_is_said(tmp_path: Path) -> None:
    """On a machine without Slurm, and on one that has it, whether or not a controller runs there."""
    said = refused_grid(tmp_path, "hydra/launcher=ray", "hydra.launcher.address=127.0.0.1:1")
    assert said.startswith("hydra.launcher.address=127.0.0.1:1: no Ray cluster answers there")
    words = ("-m", "hydra/launcher=submitit_slurm", "seed=0,1", *QUIET)
    said = refused(tmp_path, *words, PATH="/nowhere")
    assert said.startswith("hydra/launcher=submitit_slurm: no Slurm here (no sbatch on the PATH); hydra/launcher=")
    if shutil.which("sbatch"):
        conf = tmp_path / "slurm.conf"
        conf.write_text(f"ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort={free_port()}\nNodeName=a\n")
        said = refused(tmp_path, *words, SLURM_CONF=str(conf))
        assert said.startswith("hydra/launcher=submitit_slurm: no Slurm controller answers (Slurmctld(primary) at ")
    parameters = "hydra.launcher.parameters"
    said = refused_grid(tmp_path, "hydra/launcher=submitit_local", f"{parameters}.timeout_min=-5")
    assert said == f"{parameters}.timeout_min=-5: must be 1 or more"
    for name, value in (("timeout_min", -5), ("nodes", -1), ("slurm_array_parallelism", 0)):
        with pytest.raises(UserError, match=f"parameters.{name}={value}: must be "):
            executor(tmp_path, "slurm", {name: value})
    assert refused(tmp_path, "-m", "hydra/launcher=slurm").startswith("hydra/launcher=slurm: no such choice")


def free_port() -> int:
    """A port of this machine where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def refused_grid(folder: Path, *words: str) -> str:
    result = pipeline(folder, "-m", *words, "seed=0,1", *QUIET)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert not runs(folder) and " to run" not in result.stderr  # refused before the grid begins
    return result.stderr.splitlines()[-1].removeprefix("error: ")
