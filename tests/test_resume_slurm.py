"""A job that the real Slurm has put back into its queue goes on with its run (`make cluster`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command import environment, runs, status
from test_slurm import SLURM, WORDS, command, jobs_of
from test_sweep import grids, table, trained
from test_sweep_failures import begin, wait_until

from pipeline.runs import slurm
from pipeline.runs.json_files import read_json

pytestmark = pytest.mark.cluster

TRAINING = (
    *("dataset=digits", "model=linear", "training.validate_every=10000", "training.checkpoint.every=50"),
    *("loader.steps_per_execution=5", "tracking=none"),
)
SCRIPT = """#!/bin/bash
#SBATCH --requeue --open-mode=append --output=job.log {options}
{srun} {python} -m pipeline {words}
status=$?
[ $status = 138 ] && scontrol requeue $SLURM_JOB_ID
exit $status
"""


def submitted(folder: Path, srun: str, options: str, steps: int, *more: str) -> str:
    """The number of a job that trains."""
    words = " ".join((*TRAINING, f"training.steps={steps}", *more))
    (folder / "job.sh").write_text(SCRIPT.format(options=options, srun=srun, python=sys.executable, words=words))
    return command("env", "-C", str(folder), "CUDA_VISIBLE_DEVICES=-1", "sbatch", "--parsable", "job.sh").strip()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def checkpoints(folder: Path) -> list[Path]:
    return list(folder.glob("runs/*/checkpoints/step-*"))


def waits(job: str) -> bool:
    """Whether it is back in the queue, from where it may begin at once."""
    found = (slurm.jobs([job]) or {}).get(job)
    if found is None or found.state != "PENDING":
        return False
    command("scontrol", "update", f"jobid={job}", "StartTime=now")
    return True


def check_one_run_went_on(folder: Path) -> None:
    (run,) = runs(folder)
    until(lambda: status(run).state == "FINISHED")
    assert read_json(run / "receipt.json")["resumed"][0]["step"] > 0
    assert (run / "artifacts/model/weights.npz").exists()


def test_a_job_that_is_requeued_goes_on(tmp_path: Path) -> None:
    job = submitted(tmp_path, "exec", "--time=10", 30_000)
    until(lambda: checkpoints(tmp_path))
    command("scontrol", "requeue", job)
    until(lambda: waits(job))
    check_one_run_went_on(tmp_path)


def test_a_job_that_is_warned_of_its_time_limit_requeues_itself_and_goes_on(tmp_path: Path) -> None:
    job = submitted(tmp_path, "srun", "--time=2 --signal=USR1@95", 1_000_000)
    until(lambda: checkpoints(tmp_path))
    until(lambda: waits(job))
    assert "stopped by SIGUSR1" in (tmp_path / "job.log").read_text()
    (run,) = runs(tmp_path)
    until(lambda: "resumed" in read_json(run / "receipt.json"))
    command("scancel", job)
    until(lambda: status(run).state == "KILLED")
    assert runs(tmp_path) == [run]
    assert read_json(run / "receipt.json")["resumed"][0]["step"] > 0


def test_a_cell_whose_job_is_requeued_goes_on(tmp_path: Path) -> None:
    environ = {**SLURM, "CUDA_VISIBLE_DEVICES": environment()["CUDA_VISIBLE_DEVICES"]}
    process = begin(tmp_path, *WORDS, "seed=0,1", *TRAINING, "training.steps=30000", **environ)
    wait_until(lambda: jobs_of(tmp_path) and checkpoints(tmp_path), process)
    run = checkpoints(tmp_path)[0].parent.parent
    job = jobs_of(tmp_path)[run.name]
    command("scontrol", "requeue", job)
    wait_until(lambda: waits(job), process)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert len(trained(tmp_path)) == 2
    assert read_json(run / "receipt.json")["resumed"][0]["step"] > 0
    assert [row["state"] for row in table(grids(tmp_path)[0])] == ["done"] * 2
