"""Slurm, as far as its own commands tell: which jobs there are, how the cluster is set up, in which job we are.

`squeue` answers on every cluster. `sacct` needs an accounting database, which many have not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from pipeline.errors import UserError

ANSWER_SECONDS = 30.0  # for a busy controller
FRESH_SECONDS = 5.0  # for an answer about another command's job
PING_SECONDS = 10.0  # Slurm's commands look for a missing slurm.conf for a minute
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}  # squeue(1), JOB STATE CODES: what a job does not come back from
UNKNOWN = "Invalid job id"  # what squeue says of jobs that ended some minutes ago (MinJobAge)


NEVER = {"BadConstraints", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit"}  # no node can do it
USUAL = {"", "None", "Priority", "Resources", "JobArrayTaskLimit"}  # other jobs have the place, and will leave it


class Job(NamedTuple):
    """A job as squeue sees it: its state, how often it was started again, and why it waits if it does."""

    state: str
    restarts: int
    reason: str = ""

    @property
    def hopeless(self) -> bool:
        """Whether it waits for what the cluster does not have. Slurm takes such jobs, and never runs them."""
        return self.state == "PENDING" and self.reason in NEVER

    @property
    def waits_for(self) -> str | None:
        """What it waits for, where that is not its turn: somebody may have to do something about it."""
        return self.reason if self.state == "PENDING" and self.reason not in USUAL | NEVER else None

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def installed() -> bool:
    """Whether this machine can submit jobs."""
    return shutil.which("sbatch") is not None


def restarts(environment: Mapping[str, str] = os.environ) -> int:
    """How often the job that we are in was put back into the queue and started again."""
    count = environment.get("SLURM_RESTART_COUNT", "0")
    return int(count) if count.isdigit() else 0


def this_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """The job that this process belongs to, as `<cluster>/<id>.<restarts>`; None outside of Slurm."""
    number = environment.get("SLURM_JOB_ID")
    if not number:
        return None
    return f"{environment.get('SLURM_CLUSTER_NAME', '')}/{number}.{environment.get('SLURM_RESTART_COUNT', '0')}"


def has_ended(job: str, *, ours: bool) -> bool:
    """Whether what `this_job` has named is surely over. False where this machine's Slurm cannot know.

    `ours`: whether it is this user's. squeue can be set up to keep quiet about other users' jobs.
    """
    hear([job])
    found = _answers[job][1]
    if found is None:
        return False
    number, _, restarts = job.partition("/")[2].partition(".")
    now = found.get(number)
    if now is None:
        return ours or "jobs" not in settings().get("PrivateData", "jobs").split(",")
    return now.ended or now.restarts > int(restarts or 0)


_answers: dict[str, tuple[float, Mapping[str, Job] | None]] = {}  # by what `this_job` has named: when, and jobs() then


def hear(these: Iterable[str]) -> None:
    """Ask about jobs, named as by `this_job`, in one call. For some seconds `has_ended` has its answer from there."""
    now = time.monotonic()
    stale = [job for job in these if job not in _answers or now - _answers[job][0] > FRESH_SECONDS]
    here = settings().get("ClusterName") if stale and installed() else None
    numbers = {job.partition("/")[2].partition(".")[0] for job in stale if job.partition("/")[0] == here}
    found = jobs(sorted(numbers)) if numbers else None
    for job in stale:
        _answers[job] = time.monotonic(), found if job.partition("/")[0] == here else None


def jobs(ids: Iterable[str]) -> dict[str, Job] | None:
    """The jobs of these ids (`12`, `12_3` of an array, or an array's `12`) that Slurm still lists; None: no answer.

    An element of an array stands under both of its names, `12_3` and the number that the job itself sees.
    """
    columns = "JobArrayID:64,JobID:32,State:32,RestartCnt:16,Reason:200"
    which = ["--noheader", "--all", "--array", "--states=all", f"--jobs={','.join(ids)}"]
    answer = run(["squeue", *which, f"--Format={columns}"])
    if answer.returncode:
        return {} if UNKNOWN in answer.stderr else None
    found = {}
    for line in answer.stdout.splitlines():
        name, number, state, restarts, *reason = line.split(maxsplit=4)
        found[name] = Job(state, int(restarts), "".join(reason).strip())
        if number not in found or found[number].ended:  # elements that wait have the number of their array
            found[number] = found[name]
    return found


def settings() -> Mapping[str, str]:
    """The controller's settings by name (ClusterName, MaxArraySize, ...); empty where none answers."""
    try:
        return _settings()
    except UserError:
        return {}


@cache
def _settings() -> Mapping[str, str]:
    check_controller()
    lines = [line.partition("=") for line in run(["scontrol", "show", "config"]).stdout.splitlines()]
    return {name.strip(): value.strip() for name, found, value in lines if found}


def check_controller() -> None:
    """Raises UserError where no Slurm is installed, or no controller of it answers."""
    if not installed():
        raise UserError(
            "hydra/launcher=submitit_slurm: no Slurm here (no sbatch on the PATH); "
            "hydra/launcher=workers runs the cells on this machine"
        )
    answer = run(["scontrol", "ping"], PING_SECONDS)
    if answer.returncode or " UP" not in answer.stdout:
        said = one_line(answer.stderr or answer.stdout.partition("*")[0])
        raise UserError(f"hydra/launcher=submitit_slurm: no Slurm controller answers ({said}); is SLURM_CONF right?")


def has_gpus(partition: str | None) -> bool:
    """Whether some node of the partition (None: of any) has a GPU, by its generic resources."""
    words = ["sinfo", "--noheader", "--format=%G", *([f"--partition={partition}"] if partition else [])]
    return "gpu" in run(words).stdout


def cancel(ids: Iterable[str]) -> None:
    """Cancel jobs: SIGTERM, and after KillWait SIGKILL. One that has ended is left alone."""
    run(["scancel", "--quiet", *ids])


def run(words: list[str], seconds: float = ANSWER_SECONDS) -> subprocess.CompletedProcess[str]:
    """One of Slurm's commands; status 1 where it does not answer in time."""
    try:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]}: no answer within {seconds:g} s")


def one_line(text: str) -> str:
    """What Slurm says in several lines, in one."""
    return " ".join(text.split())[:300]
