"""The tracker process: follow one run to its end, then send what earlier runs left behind."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import filelock

from pipeline.machine.collector import importing
from pipeline.passwords import without_password
from pipeline.raised import in_one_line
from pipeline.runs.lookup import reap, reap_one, run_folders
from pipeline.runs.records import read_status
from pipeline.tracking import record as records
from pipeline.tracking.record import noted_cells
from pipeline.tracking.share import LEAST, NORMAL, SOME, share, step_back

if TYPE_CHECKING:
    from pipeline.tracking.store import Feed

BATCH_SECONDS = 1.5
POLL_SECONDS = 0.1
RETRY_SECONDS = (2.0, 60.0)  # after a failure: the first pause, which doubles, and the longest
TRIES = 3  # for a run that the server does not take while it runs; then once more at its end
PATIENCE_SECONDS = 60.0
LOCK_SECONDS = 60.0  # for another process that sends the run when it has ended
LEFTOVER_SECONDS = 60.0  # what a tracker spends at most on the runs of others

# A server that hangs must not hold the tracker for MLflow's own 120 s times 7; what the user has set stands.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}

# What MLflow wraps into a screen of text, in the words that matter. The first that occurs is given as the reason.
REASONS = (
    "Connection refused",
    "timed out",
    "Name or service not known",
    "Temporary failure in name resolution",
    "readonly database",
    "unable to open database file",
    "file is not a database",
    "database or disk is full",
    "No space left on device",
    "database is locked",
    "Read-only file system",
    "Permission denied",
    "Not a directory",
)


def follow(folder: Path) -> int:
    """Feed MLflow from the run in `folder` until it has ended, then from leftovers. Exit status 0: it is synced."""
    step_back()
    prepare()
    reap(folder.parent)
    while is_locked(folder) and not _has_ended(folder):  # of a run that goes on: the tracker of the process before
        time.sleep(POLL_SECONDS)
    with lock(folder, timeout=LOCK_SECONDS) as busy:
        synced = busy is None and _follow_to_the_end(folder)
        if busy is not None:
            _log(folder, busy)
    _send_leftovers(folder)
    return 0 if synced else 1


def send(folder: Path, uri: str | None = None, *, again: bool = False) -> str | None:
    """Send all of one finished run; the reason if not all of it could be sent. The caller holds its lock.

    `uri`: moves the run there. `again`: also where it is said to be there already.
    """
    record, status = records.read(folder), read_status(folder)
    if record is None or status is None or not is_due(folder, uri, again=again):
        return None
    try:
        if uri is not None and uri != record.uri:
            _store(uri, record.experiment)  # before its old address is forgotten
            records.write(folder, replace(record, uri=uri, run_id=None).unsent())
        elif again and record.stands(folder):  # else it is another entry, which gets all
            records.write(folder, record.unsent())
        return _open_feed(folder).complete(status)
    except Exception as error:  # whatever a server or a database can raise: reported, and tried later
        return _fail(folder, error, uri)


def reason_of(error: BaseException, uri: str) -> str:
    """One line for what MLflow says in a screenful."""
    text = str(error)
    for phrase in REASONS:
        if phrase.lower() in text.lower():
            return f"{without_password(uri)}: {phrase}"
    return f"{without_password(uri)}: {without_password(in_one_line(error))[:200]}"


def _follow_to_the_end(folder: Path) -> bool:
    feed: Feed | None = None
    refused = 0  # times that the server was up and did not take it: its cells must not wait for that
    cells = Cells(folder)
    pause, next_try = RETRY_SECONDS[0], 0.0
    while not _has_ended(folder):
        if time.monotonic() >= next_try:
            try:
                if refused < TRIES:
                    feed = feed or _open_patiently(folder)
                    feed.advance()
                cells.advance()
                pause, next_try = RETRY_SECONDS[0], time.monotonic() + BATCH_SECONDS
            except Exception as error:  # see send
                _log(folder, _fail(folder, error))
                refused += not _is_down(folder)
                feed, next_try = None, time.monotonic() + pause
                pause = min(2.0 * pause, RETRY_SECONDS[1])
        time.sleep(POLL_SECONDS)
    share(NORMAL)  # the run computes no more, and whoever began it waits
    with suppress(Exception):  # a cell that could not be sent is a leftover
        cells.advance()
    reason = _send(folder)
    if reason is not None and "locked" in reason:  # many runs that end at once queue for one database file
        reason = _send(folder)
    share(LEAST)
    return reason is None


def _open_patiently(folder: Path) -> Feed:
    """MLflow's import takes seconds of a core. Beside a training that leaves none it gets some after a while."""
    timer = Timer(PATIENCE_SECONDS, share, (SOME,))
    timer.daemon = True
    timer.start()
    try:
        return _open_feed(folder)
    finally:
        timer.cancel()
        share(LEAST)


class Cells:
    """The runs of a grid's cells, sent as they go. A run that is not a grid has none."""

    def __init__(self, grid: Path) -> None:
        self.grid, self.read = grid, 0
        self.open: dict[Path, Feed | None] = {}
        self.refused: Counter[Path] = Counter()  # times that the server was up and did not take a cell

    def advance(self) -> None:
        """Send what is new of every cell, and the whole of those that have ended. Raises where the server is down.

        Trouble with one cell alone keeps none of the others: what is left of it is a leftover.
        """
        self._find_new()
        for folder in list(self.open):
            with lock(folder, timeout=0.0) as busy:
                if busy is not None:
                    continue
                if _has_ended(folder):
                    if self._is_tracked(folder) and (reason := _send(folder)) is not None and _is_down(folder):
                        raise ConnectionError(reason)
                    del self.open[folder]
                elif self._is_tracked(folder) and self.refused[folder] < TRIES:
                    self._advance_one(folder)

    def _advance_one(self, folder: Path) -> None:
        try:
            feed = self.open[folder] = self.open[folder] or _open_feed(folder)
            feed.advance()
        except Exception as error:  # see send
            self.open[folder] = None
            _log(folder, _fail(folder, error))
            if _is_down(folder):
                raise
            self.refused[folder] += 1

    def _find_new(self) -> None:
        with suppress(FileNotFoundError):
            cells = noted_cells(self.grid)
            self.open |= dict.fromkeys(cells[self.read :])
            self.read = len(cells)

    @staticmethod
    def _is_tracked(folder: Path) -> bool:
        return records.read(folder) is not None


def _has_ended(folder: Path) -> bool:
    reap_one(folder)
    status = read_status(folder)
    return status is None or status.state != "RUNNING"


def _send_leftovers(own: Path) -> None:
    """Send other runs that are due, within a bounded time. A server that has failed is not asked again."""
    reap(own.parent)  # a cell may have outlived its grid for a moment
    end = time.monotonic() + LEFTOVER_SECONDS
    record = records.read(own)
    down = {record.uri} if record is not None and record.error and _is_down(own) else set()
    for folder in sorted(filter(is_due, run_folders(own.parent)), key=is_cell):  # grids first
        record = records.read(folder)
        if record is None or record.waits_for_sync or record.uri in down or folder == own:
            continue
        if _comes_before_its_grid(folder, record):  # which has a tracker of its own, perhaps
            continue
        if time.monotonic() > end:
            return
        with lock(folder, timeout=0.0) as busy:
            if busy is None and _send(folder) is not None and _is_down(folder):
                down.add(record.uri)


def is_cell(folder: Path) -> bool:
    """Whether a run is that of a grid's cell."""
    record = records.read(folder)
    return record is not None and record.grid is not None


def _comes_before_its_grid(folder: Path, record: records.Record) -> bool:
    """Whether a run is a cell whose grid has no run in MLflow yet: sent now, it would never be tied to that."""
    grid = records.grid_of(folder, record)
    return grid is not None and grid.uri == record.uri and grid.run_id is None


def is_due(folder: Path, uri: str | None = None, *, again: bool = False) -> bool:
    """Whether a run has ended and is to be sent: see `send`."""
    record, status = records.read(folder), read_status(folder)
    if record is None or status is None or status.state == "RUNNING":
        return False
    return again or (uri is not None and uri != record.uri) or record.is_due(status)


def is_down(uri: str, experiment: str) -> bool:
    """Whether it is the server that is the trouble, and not the one run that could not be sent."""
    _store.cache_clear()
    try:
        _store(uri, experiment)
    except Exception:  # see send
        return True
    return False


def _is_down(folder: Path) -> bool:
    record = records.read(folder)
    return record is not None and is_down(record.uri, record.experiment)


def _open_feed(folder: Path) -> Feed:
    record = records.read(folder)
    assert record is not None
    store = _store(record.uri, record.experiment)
    from pipeline.tracking.store import Feed  # which `_store` has imported

    return Feed(folder, record, *store)


@cache
def _store(uri: str, experiment: str) -> tuple[Any, str]:
    with importing("mlflow"):  # MLflow imports more when it opens a store
        from pipeline.tracking.store import open_store

        return open_store(uri, experiment)


def _send(folder: Path) -> str | None:
    """`send`, and a line in the tracker's log where it fails."""
    if (reason := send(folder)) is not None:
        _log(folder, reason)
    return reason


def _log(folder: Path, reason: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {folder.name}: {reason}", file=sys.stderr, flush=True)


def _fail(folder: Path, error: Exception, uri: str | None = None) -> str:
    _store.cache_clear()
    record = records.read(folder)
    reason = reason_of(error, uri or (record.uri if record is not None else str(folder)))
    if record is not None and uri in (None, record.uri):  # a move that failed changes nothing
        with suppress(OSError):  # whoever asked says it, at least
            records.write(folder, replace(record, error=reason))
    return reason


def is_locked(folder: Path) -> bool:
    """Whether a process has the right to send this run at the moment."""
    if not folder.is_dir():
        return False
    try:
        with filelock.FileLock(folder / "mlflow.lock", timeout=0.0):
            return False
    except OSError as error:
        return isinstance(error, filelock.Timeout)


@contextmanager
def lock(folder: Path, timeout: float) -> Iterator[str | None]:
    """Lock this run, to send it. Yields why it cannot: another process has it, or nobody can write there; else None."""
    if not folder.is_dir():  # to lock it would make it
        yield "its folder is gone"
        return
    lock = filelock.FileLock(folder / "mlflow.lock", timeout=timeout)
    try:
        lock.acquire()
    except OSError as error:
        yield "another process is sending it" if isinstance(error, filelock.Timeout) else str(error)
        return
    try:
        yield None
    finally:
        lock.release()


def prepare() -> None:
    """Set MLflow's environment, before it is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
