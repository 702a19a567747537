"""Tracking: a run's journal is sent to MLflow by its own process, so that the run never waits for a server.

This module is imported by the training process and knows nothing of mlflow; store.py does, and is imported by
the tracker process alone.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import Field, field_validator

from pipeline.contracts import Tracking
from pipeline.errors import UserError
from pipeline.passwords import without_password
from pipeline.runs.journal import Journal
from pipeline.runs.lookup import reap
from pipeline.runs.records import read_status
from pipeline.spec import spec
from pipeline.tracking import record as records
from pipeline.tracking.share import NORMAL, share

KNOWN_DOWN_SECONDS = 5.0  # a server that failed while the run ran gets no longer than this at its end
SILENT_SECONDS = 3.0  # at the end of a run, before it says what it waits for
POLL_SECONDS = 0.05


@spec
class Mlflow(Tracking):
    """Track to MLflow: a database file in the current folder, or a server."""

    experiment: str = Field(default="pipeline", min_length=1, max_length=500)
    uri: str | None = None  # None: $MLFLOW_TRACKING_URI, or else sqlite:///<current folder>/mlflow.db
    wait: float = Field(default=20.0, ge=0.0, allow_inf_nan=False)  # seconds that a finished run waits for its own sync
    artifacts: bool = True  # whether MLflow gets the run's files too

    @field_validator("uri")
    @classmethod
    def _known(cls, uri: str | None) -> str | None:
        if uri is not None:
            records.check_uri(uri)
        return uri


@spec
class Off(Tracking):
    """No tracking: the journal in the run's own folder is all."""


class Tracker:
    """The process that follows one run."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None) -> None:
        self.folder = folder
        self.process = process

    def close(self, wait: float, say: Callable[[str], None] | None = None) -> str:
        """After `Journal.finish`: wait up to `wait` seconds for the sync; say how it stands.

        `say` gets a line where that takes long.
        """
        from pipeline.tracking.follow import is_locked  # at its end a run may import more

        if self.process is not None:
            share(NORMAL, self.process.pid)  # it may be in the middle of its imports
        patient = time.monotonic() + SILENT_SECONDS
        end = time.monotonic() + wait
        soon = min(end, time.monotonic() + KNOWN_DOWN_SECONDS)
        while True:
            ended = self.process is None or self.process.poll() is not None  # asked before the record is read
            another = ended and is_locked(self.folder)  # of a run that went on: the tracker of the process before
            record = records.read(self.folder)
            error = record.error if record is not None else None
            status = read_status(self.folder)
            if record is not None and status is not None and record.has_end(status) and (record.synced or error):
                return self._there(record)
            if ended and not another:
                return self._unsynced(error or _last_line(self.folder / "tracking.log"))
            if time.monotonic() >= (soon if error else end):
                return self._unsynced(error) if error else self._sending(another)
            if say is not None and time.monotonic() > patient:
                say(f"waiting for MLflow to have the run, up to {wait:g} s (tracking.wait)")
                say = None
            time.sleep(POLL_SECONDS)

    def _cells(self) -> list[Path]:
        try:
            return records.noted_cells(self.folder)
        except OSError:
            return []

    def _there(self, record: records.Record) -> str:
        """For a run that has its end in MLflow: what of it, or of its cells, is not there."""
        text = f"synced as run {record.run_id}" if record.synced else f"run {record.run_id}, but {record.error}"
        cells = self._cells()
        missing = {cell: found for cell in cells if (found := records.read(cell)) and found.is_due(read_status(cell))}
        if missing:
            cell, first = next(iter(missing.items()))
            text += (
                f"; {len(missing)} of its {len(cells)} cells not whole ({cell.name}: {first.error or 'not sent yet'})"
            )
        return text if record.synced and not missing else f"{text}; `{self._sync}` sends the rest later"

    def _sending(self, another: bool) -> str:
        """For a run that is still being sent, by `another` process than its tracker."""
        if another:
            return f"another process is still sending it; `{self._sync}` sends what it leaves"
        return "still syncing in the background"

    def _unsynced(self, reason: str) -> str:
        return f"not reachable: {reason}; the journal is complete; `{self._sync}` sends it later"

    @property
    def _sync(self) -> str:
        return sync_words(self.folder.parent)


def sync_words(root: Path) -> str:
    """The command that sends what MLflow lacks of the runs in a folder."""
    return f"python -m pipeline.tracking sync {shlex.quote(str(root))}"


def left_behind(runs: Sequence[Path]) -> str | None:
    """Which of these runs, of one folder, MLflow lacks in part, and the command that sends them; None where it has all.

    What another process is sending is not lacking.
    """
    from pipeline.tracking.follow import is_due, is_locked

    due = [run for run in runs if is_due(run) and not is_locked(_followed(run))]
    if not due:
        return None
    return f"MLflow lacks {len(due)} of {len(runs)} runs, or a part of them; `{sync_words(due[0].parent)}` sends them"


def _followed(run: Path) -> Path:
    """The run whose tracker sends it: a cell's is that of its grid."""
    record = records.read(run)
    return run if record is None or record.grid is None else run.parent / Path(record.grid).name


def start(tracking: Tracking, journal: Journal, grid: str | None = None) -> Tracker | None:
    """Spawn the tracker of a run that has just begun. Errors of the server are the tracker's, never the run's.

    A cell of a grid (`grid`: the folder of the grid's own run) is followed by the grid's tracker and needs none.
    """
    if not isinstance(tracking, Mlflow):
        if grid is None:
            reap(journal.folder.parent)  # with tracking on, the tracker does it
        return None
    in_environment = os.environ.get("MLFLOW_TRACKING_URI")
    try:
        uri = records.check_uri(tracking.uri or in_environment or records.DEFAULT_URI)
    except ValueError as error:
        named = f"MLFLOW_TRACKING_URI={in_environment}" if in_environment else "tracking.uri=null"
        raise UserError(f"{named}: {error}") from error
    record = records.Record(uri=uri, experiment=tracking.experiment, artifacts=tracking.artifacts, grid=grid)
    before = records.read(journal.folder)
    if before is not None and (before.uri, before.experiment) == (record.uri, record.experiment):  # a run that goes on
        reached = before.last is not None or before.offset <= (journal.folder / "metrics.jsonl").stat().st_size
        record = replace(record, run_id=before.run_id, offset=before.offset if reached else 0, last=before.last)
    try:
        records.write(journal.folder, record)
        if grid is not None:
            return None
        process = _spawn(journal.folder)
    except OSError as error:  # no room for a process or for its log: the run goes on without
        process = None
        _note(journal.folder, replace(record, error=f"the tracker did not start: {error}"))
    return Tracker(journal.folder, process)


def _spawn(folder: Path) -> subprocess.Popen[bytes]:
    # Its own session: Ctrl-C in the terminal reaches the run but not the tracker, which then sees how it ended.
    command = [sys.executable, "-m", "pipeline.tracking", "follow", str(folder)]
    # The log is for its owner alone: MLflow and what it calls may name the address.
    number = os.open(folder / "tracking.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment()
        )


def _environment() -> dict[str, str]:
    """The tracker finds this package where this process found it, also when that was by a changed sys.path."""
    environment = dict(os.environ)
    root = Path(__file__).absolute().parents[2]
    if root.name != "site-packages":
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{known}" if known else str(root)
    return environment


def _note(folder: Path, record: records.Record) -> None:
    with suppress(OSError):  # the journal, which is on the same disk, informs the user
        records.write(folder, record)


def _last_line(path: Path) -> str:
    lines: list[str] = []
    with suppress(OSError):
        lines = path.read_text(errors="replace").strip().splitlines()
    return without_password(lines[-1])[:200] if lines else "the tracker ended without a message"
