"""One cell of a sweep, in its own process.

    python -m pipeline.sweep.cell <job file> <parent's pid>     (submitit's and Ray's; a warm worker calls `run_job`)

The job file says what to run. Beside it the cell notes which run it became, so that whoever started it can follow.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.exits import status_of, stop_on_signals
from pipeline.errors import UserError
from pipeline.machine.environment import environment, handed_on
from pipeline.machine.launched import alone
from pipeline.runs.json_files import write_json
from pipeline.runs.noted_path import note_path, noted_path
from pipeline.runs.records import read_status, records_until
from pipeline.variables import names_in

if TYPE_CHECKING:
    from pipeline.runs.run import Run
    from pipeline.sweep.plan import Cell

GRACE_SECONDS = 30.0  # for a cell that was asked to stop to write its journal's last word
OVERDUE_SECONDS = GRACE_SECONDS + 5.0  # then the kernel ends it, where whoever asked is gone
POLL_SECONDS = 0.1  # of a cluster's job, for the end of its cell
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


@dataclass(frozen=True)
class Job:
    """What a cell's process is given. `grid`: the folder of the grid's own run. `keys`: the keys that the user set.

    `swept`: those in which the grid's cells differ.
    """

    number: int
    config: dict[str, Any]
    keys: list[str]
    grid: str
    trial: dict[str, Any] | None = None  # of a search: see pipeline.sweep.search
    swept: tuple[str, ...] = ()


def job_file(folder: Path, number: int) -> Path:
    """Where the job of cell `number` is written, below the folder of the grid's run."""
    return folder / "cells" / f"{number:04d}.json"


def log_file(job: Path) -> Path:
    """The file that a cell's output goes to, beside its job file."""
    return job.with_suffix(".log")


def last_line(log: Path) -> str:
    """The last line of such a file, without the `error: ` before it; empty where nothing was printed."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("error: ")[:500] if lines else ""


def write_job(path: Path, job: Job) -> None:
    """Write a job file; its folder is made. For the user's eyes only: a tracking address may hold a password."""
    path.parent.mkdir(exist_ok=True)
    write_json(path, asdict(job), mode=0o600)


def run_of(job: Path) -> Path | None:
    """The folder of the run that the cell has become; None before it has."""
    try:
        return noted_path(job.with_suffix(".run"))
    except OSError:
        return None


def runs_noted(folder: Path) -> set[str]:
    """The numbers, as in their job files' names, of the cells below a grid's folder that have become runs."""
    try:
        with os.scandir(folder / "cells") as entries:
            return {entry.name.removesuffix(".run") for entry in entries if entry.name.endswith(".run")}
    except OSError:
        return set()


def run_job(path: Path) -> int:
    """Run the cell that a job file describes. Returns its exit status, whatever happens in it."""
    try:
        return status_of(lambda: _run(path))
    except SystemExit:  # the user's model may call sys.exit, also with 0: the journal has it as FAILED
        return 1


def _run(path: Path) -> int:
    known, since = set(sys.modules), time.time()  # what a warm worker has imported is what it has hashed
    from pipeline.ready import ready
    from pipeline.runner import record
    from pipeline.runs.resume import DEAD, KILLED, begun_before
    from pipeline.sweep.imports import import_code

    job = Job(**json.loads(path.read_bytes()))
    grid = read_status(Path(job.grid))
    if grid is not None and grid.state != "RUNNING":  # it waited in a queue for longer than its grid has lived
        raise UserError(f"its grid {grid.id} has ended ({grid.state}), so that this cell is not needed")
    experiment, resolved = ready(job.config, job.keys, job.swept)
    experiment.backend.load()  # what it sets has to be set before any module imports its framework
    import_code(experiment, known, since)
    goes_on = {"killed": KILLED, "failed": DEAD, "all": ()}[experiment.sweep.retry]
    checkpoint = begun_before(experiment, resolved, job.swept, goes_on)
    return record(experiment, resolved, Member(job, path), checkpoint=checkpoint, keys=job.keys)


class Member:
    """The run's tie to its grid."""

    def __init__(self, job: Job, path: Path) -> None:
        self.grid, self.trial, self.path = job.grid, job.trial, path

    def began(self, run: Run) -> None:
        """Note which run the cell has become; a trial of a search is asked after every epoch whether to go on."""
        note = self.path.with_suffix(".run")
        temporary = note.with_suffix(".new")
        note_path(temporary, run.folder)
        temporary.replace(note)
        if self.trial is not None:
            from pipeline.sweep.search_study import Pruner

            pruner = Pruner(self.trial)
            if run.checkpoint is not None:
                pruner.report_before(records_until(run.folder, run.checkpoint.progress["journal_bytes"]))
            run.listeners.append(pruner)

    def interrupted(self) -> str | None:
        """What the grid has noted before it sent its cells a signal."""
        try:
            return f"its grid was interrupted ({_interrupt_file(Path(self.grid)).read_text()})"
        except OSError:
            return None


def note_interrupt(folder: Path, signal_name: str) -> None:
    """Have the cells below the folder of a grid's run say what stopped it, and not what it stops them by."""
    with suppress(OSError):
        _interrupt_file(folder).write_text(signal_name)


def _interrupt_file(folder: Path) -> Path:
    return folder / "cells" / "interrupted"


def environment_file(folder: Path) -> Path:
    """What cells in new processes need to know of the command's environment, below the folder of the grid's run."""
    return folder / "cells" / "environment.json"


def write_environment(folder: Path) -> None:
    """Write it, for the user's eyes only: what cells read, and what changes numbers. The rest is the node's."""
    kept = ("PIPELINE_", "MLFLOW_TRACKING_URI", "PYTHONPATH", "XDG_CACHE_HOME", *handed_on(environment()))
    path = environment_file(folder)
    path.parent.mkdir(exist_ok=True)
    write_json(path, {name: value for name, value in os.environ.items() if name.startswith(kept)}, mode=0o600)


def add_environment(job: Path, cell: Cell) -> None:
    """Add the variables that a cell's config names (`${oc.env:NAME}`) and those that the user's code reads.

    What the node sets by itself (TMPDIR, SLURM_JOB_ID) has the node's values there.
    """
    from pipeline.runs.code.code_hash import own_variables

    path = job.with_name("environment.json")
    given = json.loads(path.read_bytes())
    names = [*names_in(cell.config), *(own_variables(cell.experiment) if cell.experiment else ())]
    named = handed_on({name: os.environ[name] for name in names if name in os.environ})
    if not named.items() <= given.items():
        write_json(path, given | named, mode=0o600)


def end_file(job: Path) -> Path:
    """Where a cell in a new process notes a violent end."""
    return job.with_suffix(".end")


def in_new_process(path: Path, folder: Path) -> str | None:
    """Run a cell by a new Python in `folder`: what a cluster's job does. Returns what a signal did, if any.

    A job that is cancelled gives its cell the time to say so.
    """
    command = [sys.executable, "-m", "pipeline.sweep.cell", str(path), str(os.getpid())]
    given = json.loads((path.parent / "environment.json").read_bytes())
    with log_file(path).open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**alone(os.environ), **given}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        while process.poll() is None:  # no wait(): Ray's cancel is seen between two instructions of Python only
            time.sleep(POLL_SECONDS)
        found = violent(process.returncode)
        if found:
            end_file(path).write_text(found)
        return found
    except BaseException:
        process.terminate()
        with suppress(BaseException):  # asked once more, as Ray and submitit do
            process.wait(GRACE_SECONDS)
        process.kill()
        raise


def violent(status: int) -> str | None:
    """What a negative exit status (a signal) says; None for a process that ended by itself."""
    if status >= 0:
        return None
    name = signal.Signals(-status).name
    hint = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


def main(arguments: list[str]) -> int:
    """The command: a job file, and the process that this one ends with."""
    stop_on_signals(grace=OVERDUE_SECONDS)  # a cluster signals all processes of a job, and its sweep the cell too
    end_with(int(arguments[1]) if arguments[1:] else os.getppid(), signal.SIGTERM)
    return run_job(Path(arguments[0]))


def end_with(parent: int, number: signal.Signals | None) -> None:
    """Have the kernel send this process a signal when its parent dies, however that happens; None: no more.

    By prctl(2). Where the parent has died already, the signal comes at once.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number or 0)
    if number and os.getppid() != parent:
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
