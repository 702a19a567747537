"""Grids on a real Slurm, the one that SLURM_CONF names (`make cluster`): docs/sweeps.md says how to start one.

It needs one node with a core to spare and no accounting. The user must be its operator, for draining a node.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from command import pipeline, runs, status
from test_claims import held_model
from test_sweep import QUIET, grids, table, trained
from test_sweep_failures import begin, metrics_of, wait_until

from pipeline.runs import slurm

pytestmark = pytest.mark.cluster

SLURM = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
PARAMETERS = "hydra.launcher.parameters"
WORDS = ("-m", "hydra/launcher=submitit_slurm", f"{PARAMETERS}.cpus_per_task=1", f"{PARAMETERS}.mem_gb=1")
LINEAR = ("model=linear", *QUIET)
LONG = ("model=linear", "dataset=digits", "training.epochs=1000000", "tracking=none")


@pytest.fixture(scope="module", autouse=True)
def controller() -> None:
    """A Slurm that answers: without one these tests say nothing."""
    slurm.check_controller()


def command(*words: str) -> str:
    """What one of Slurm's commands prints; it must succeed."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def queue() -> dict[str, str]:
    """The state of each job of this user that Slurm has not forgotten."""
    lines = command("squeue", "--noheader", "--array", "--me", "--states=all", "--Format=JobArrayID:40,State:40")
    return dict(line.split() for line in lines.splitlines())


def newest_array() -> str:
    """The number of the array that was submitted last."""
    return str(max(int(name.partition("_")[0]) for name in queue()))


def jobs_of(folder: Path) -> dict[str, str]:
    """The Slurm job of each run of a cell, as scancel knows it (12_3), by the run's id."""
    names = command("squeue", "--noheader", "--array", "--me", "--states=R", "--Format=JobID:40,JobArrayID:40")
    known = dict(line.split() for line in names.splitlines())
    jobs = {run.name: str(status(run).job).partition("/")[2].partition(".")[0] for run in trained(folder)}
    return {name: known[job] for name, job in jobs.items() if job in known}


def test_fifty_cells_are_one_array_that_lives_through_a_bad_day(tmp_path: Path) -> None:
    """One cell is cancelled, the node is drained and comes back; the same command then runs what is left."""
    words = (*WORDS, "seed=range(50)", *LINEAR, f"{PARAMETERS}.slurm_array_parallelism=2")
    process = begin(tmp_path, *words, SECRET_TOKEN="open sesame", CUDA_VISIBLE_DEVICES="-1", **SLURM)
    wait_until(lambda: len(trained(tmp_path)) > 2, process)
    array = newest_array()
    (node,) = {line.split()[0] for line in command("sinfo", "--noheader", "--Node", "--format=%N").splitlines()}
    command("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        command("scancel", f"{array}_49")
        wait_until(lambda: "RUNNING" not in queue().values(), process)  # what ran may end
        ended = len(trained(tmp_path))
        time.sleep(5)
        assert len(trained(tmp_path)) == ended  # and nothing else begins
    finally:
        command("scontrol", "update", f"nodename={node}", "state=resume")
    most = 0
    while process.poll() is None:
        most = max(most, list(queue().values()).count("RUNNING"))
        time.sleep(0.5)
    _, err = process.communicate()
    print(err)
    assert process.returncode == 1, err
    rows = table(grids(tmp_path)[0])
    assert [row["seed"] for row in rows if row["state"] != "done"] == ["49"]
    assert rows[49]["reason"] in (f"Slurm's job {array}_49{end}" for end in (": CANCELLED", " is gone (cancelled?)"))
    assert most == 2
    assert {name.partition("_")[0] for name in queue() if int(name.partition("_")[0]) >= int(array)} == {array}
    assert len(err.splitlines()) < 60  # no flood of warnings where there is no accounting
    again = pipeline(tmp_path, *words, **SLURM)
    print(again.stderr)
    assert again.returncode == 0, again.stderr
    assert "50 cells: 1 to run, 49 finished before" in again.stderr
    assert len(trained(tmp_path)) == 50
    written = [path for path in grids(tmp_path)[0].rglob("*") if path.is_file()]
    assert not [path for path in written if b"open sesame" in path.read_bytes()]
    assert stat.S_IMODE((grids(tmp_path)[0] / "submitit").stat().st_mode) == 0o700


def test_what_slurm_refuses_is_one_message(tmp_path: Path) -> None:
    for words, said in (
        ([f"{PARAMETERS}.gpus_per_node=1"], "Slurm refuses the cells: Invalid generic resource"),
        (["device=gpu"], "Slurm refuses the cells: Invalid generic resource"),
        ([f"{PARAMETERS}.slurm_partition=nosuch"], "Slurm refuses the cells: invalid partition specified: nosuch"),
        ([f"{PARAMETERS}.mem_gb=1000000"], "Slurm "),
        ([f"{PARAMETERS}.cpus_per_task=4000"], "Slurm "),
    ):
        small = [word for word in WORDS if not words[0].startswith(word.partition("=")[0])]
        result = pipeline(tmp_path, *small, *words, "seed=0,1", *LINEAR, **SLURM)
        assert result.returncode == 2, result.stderr
        errors = [line for line in result.stderr.splitlines() if "error" in line]
        assert len(errors) == 1, result.stderr
        assert errors[0].startswith(f"error: {PARAMETERS}: {said}"), result.stderr
        assert "(asked for timeout_min=60, " in errors[0]
        assert {status(run).state for run in runs(tmp_path)} == {"FAILED"}
    assert trained(tmp_path) == []


def test_why_cells_wait_is_said(tmp_path: Path) -> None:
    """A grid on a partition that is down was silent, and said that its cells were running."""
    command("scontrol", "update", "partitionname=main", "state=down")
    try:
        process = begin(tmp_path, *WORDS, "seed=0,1", *LINEAR, f"{PARAMETERS}.slurm_partition=main", **SLURM)
        assert process.stderr is not None
        assert process.stderr.readline() == "2 cells: 2 to run\n"
        assert process.stderr.readline() == "Slurm lets 2 cells wait: PartitionDown\n"
    finally:
        command("scontrol", "update", "partitionname=main", "state=up")
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "2 done · 0 failed" in err


def test_a_cancelled_job_and_one_past_its_time_are_judged_right(tmp_path: Path) -> None:
    process = begin(tmp_path, *WORDS, "seed=0,1", *LONG, f"{PARAMETERS}.timeout_min=1", **SLURM)
    wait_until(lambda: [run for run in trained(tmp_path) if metrics_of(run) and run.name in jobs_of(tmp_path)], process)
    run = next(run for run in trained(tmp_path) if metrics_of(run))
    command("scancel", jobs_of(tmp_path)[run.name])
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1, err
    rows = {row["run"]: row for row in table(grids(tmp_path)[0])}
    assert (rows[run.name]["state"], rows[run.name]["reason"]) == ("killed", "stopped by SIGTERM")
    (late,) = (row for name, row in rows.items() if name != run.name)
    assert (late["state"], late["reason"]) == ("failed", f"took longer than {PARAMETERS}.timeout_min=1")
    again = pipeline(tmp_path, *WORDS, "seed=0,1", *LONG, "sweep.dry_run=true", **SLURM)
    assert "2 cells: 1 to run, 1 failed before" in again.stdout
    assert f"{run.name} was killed before its end" in again.stdout


def test_a_job_that_is_started_again_is_another_run_of_its_cell(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    held, environ = held_model(tmp_path)
    words = (*WORDS, "seed=0,1", *held)
    process = begin(tmp_path, *words, **environ, **SLURM)
    wait_until(lambda: jobs_of(tmp_path), process)
    (first,) = trained(tmp_path)[:1]
    job = jobs_of(tmp_path)[first.name]
    command("scontrol", "requeue", job)
    wait_until(lambda: status(first).state == "KILLED", process)
    wait_until(lambda: slurm.jobs([job]) and slurm.jobs([job])[job].state == "PENDING", process)  # type: ignore[index]
    command("scontrol", "update", f"jobid={job}", "StartTime=now")
    (tmp_path / "hold").unlink()
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert [row["state"] for row in table(grids(tmp_path)[0])] == ["done"] * 2
    assert first.name not in {row["run"] for row in table(grids(tmp_path)[0])}
    assert sorted(status(run).state for run in trained(tmp_path)) == ["FINISHED", "FINISHED", "KILLED"]
    again = pipeline(tmp_path, *words, **environ, **SLURM)
    assert "2 cells: 2 finished before" in again.stderr, again.stderr


def test_cells_that_a_stopped_grid_takes_back_say_so(tmp_path: Path) -> None:
    """Slurm forgets a job that has not begun, which looked as if somebody else had cancelled it."""
    process = begin(tmp_path, *WORDS, "seed=0,1", *LONG, f"{PARAMETERS}.slurm_array_parallelism=1", **SLURM)
    wait_until(lambda: any(map(metrics_of, trained(tmp_path))), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert "2 killed" in err
    reasons = [row["reason"] for row in table(grids(tmp_path)[0])]
    assert reasons == ["stopped by SIGTERM", "withdrawn before it began, as the sweep was stopped"]


def test_a_job_that_outlives_its_grid_does_not_run(tmp_path: Path) -> None:
    process = begin(tmp_path, *WORDS, "seed=range(6)", *LONG, f"{PARAMETERS}.slurm_array_parallelism=1", **SLURM)
    wait_until(lambda: jobs_of(tmp_path), process)
    process.kill()
    process.communicate()
    (run,) = trained(tmp_path)
    dry = pipeline(tmp_path, *WORDS, "seed=range(6)", *LONG, "sweep.dry_run=true", **SLURM)
    assert "6 cells: 5 to run, 1 running elsewhere" in dry.stdout, dry.stdout
    array = newest_array()
    command("scancel", jobs_of(tmp_path)[run.name])
    end = time.monotonic() + 600
    while slurm.jobs([array]) and not all(job.ended for job in (slurm.jobs([array]) or {}).values()):
        assert time.monotonic() < end
        time.sleep(1)
    assert trained(tmp_path) == [run]
    logs = [path.read_text() for path in (grids(tmp_path)[0] / "cells").glob("*.log")]
    assert sum(bool(re.search(r"its grid .* has ended \(KILLED\)", text)) for text in logs) == 5


def test_a_dead_job_on_another_node_is_known_by_its_number() -> None:
    """squeue says what this machine's process table cannot."""
    cluster = slurm.settings()["ClusterName"]
    number = re.sub(r"\D", "", command("sbatch", "--output=/dev/null", "--mem=10", "--wrap=sleep 300"))
    try:
        assert not slurm.has_ended(f"{cluster}/{number}.0", ours=True)
        assert slurm.has_ended(f"{cluster}/99999999.0", ours=False)  # this Slurm shows everybody's jobs
        assert not slurm.has_ended("another cluster/99999999.0", ours=True)
    finally:
        command("scancel", number)
    wait = time.monotonic() + 600
    while not slurm.has_ended(f"{cluster}/{number}.0", ours=True):
        assert time.monotonic() < wait
        time.sleep(0.5)
