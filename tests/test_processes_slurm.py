"""The processes of a training as tasks of a real Slurm (`make cluster`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import done, runs
from test_processes import ALWAYS, PLAIN, check_same
from test_resume_slurm import check_one_run_went_on, checkpoints, submitted, until, waits
from test_slurm import command

from pipeline.runs.json_files import read_json

pytestmark = pytest.mark.cluster

STEP = "srun --ntasks=2 --kill-on-bad-exit"


def test_srun_starts_processes_that_train_as_one(tmp_path: Path) -> None:
    words = (*ALWAYS, *PLAIN)
    folder = tmp_path / "slurm"
    folder.mkdir()
    start = ("env", "-C", str(folder), "CUDA_VISIBLE_DEVICES=-1", *STEP.split(), sys.executable, "-m", "pipeline")
    command(*start, *words, "device.processes=2")
    (run,) = runs(folder)
    check_same(done(tmp_path, *words), run)
    assert read_json(run / "receipt.json")["processes"]["count"] == 2


def test_a_job_of_several_processes_that_is_requeued_goes_on(tmp_path: Path) -> None:
    job = submitted(tmp_path, STEP, "--time=10 --ntasks=2", 10_000, "device.processes=2")
    until(lambda: checkpoints(tmp_path))
    command("scontrol", "requeue", job)
    until(lambda: waits(job))
    check_one_run_went_on(tmp_path)
