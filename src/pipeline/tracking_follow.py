"""The tracker process: follow one run to its end, then send what earlier runs left behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from pipeline import tracking_record as records
from pipeline.journal import read_status, without_password
from pipeline.runs import reap, reap_one, run_folders

if TYPE_CHECKING:
    from pipeline.tracking_store import Feed

CELLS = "cells.txt"  # in the folder of a grid's run: the folders of its cells' runs, a line each
BATCH_SECONDS = 1.5
POLL_SECONDS = 0.1
RETRY_SECONDS = (2.0, 60.0)  # after a failure: the first pause, which doubles, and the longest
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
    _step_back()
    _prepare()
    reap(folder.parent)
    with _lock(folder, timeout=60.0) as held:
        synced = held and _follow_to_the_end(folder)
    _send_leftovers(folder)
    return 0 if synced else 1


def sync(root: Path, uri: str | None = None) -> int:
    """Send every finished, unsynced run below `root`, a line for each. Exit status 1 where one could not be sent."""
    _prepare()
    reap(root)
    failed = 0
    due = [folder for folder in run_folders(root) if _is_due(folder)]
    for folder in due:
        with _lock(folder, timeout=0.0) as held:
            error = send(folder, uri) if held else "another process is sending it"
        record = records.read(folder)
        print(f"{folder.name}: " + (f"not sent: {error}" if error else f"synced as run {record and record.run_id}"))
        failed += error is not None
    if not due:
        print(f"{root}: nothing to sync")
    return 1 if failed else 0


def send(folder: Path, uri: str | None = None) -> str | None:
    """Send all of one finished run, to `uri` if given; the reason if that failed. The caller holds its lock."""
    record, status = records.read(folder), read_status(folder)
    if record is None or status is None or not record.is_due(status):
        return None
    if uri is not None and uri != record.uri:
        record = records.Record(uri=uri, experiment=record.experiment)  # another server: from the beginning
        records.write(folder, record)
    try:
        feed = _open_feed(folder)
        feed.advance()
        feed.complete(status)
    except Exception as error:  # whatever a server or a database can raise: told, and tried later
        return _fail(folder, error)
    return None


def reason_of(error: BaseException, uri: str) -> str:
    """One line for what MLflow tells in a screenful."""
    text = str(error)
    for phrase in REASONS:
        if phrase.lower() in text.lower():
            return f"{without_password(uri)}: {phrase}"
    line = text.strip().splitlines()[0] if text.strip() else ""
    return without_password(f"{uri}: {line[:200] or type(error).__name__}")


def _follow_to_the_end(folder: Path) -> bool:
    feed: Feed | None = None
    cells = Cells(folder)
    pause, next_try = RETRY_SECONDS[0], 0.0
    while not _has_ended(folder):
        if time.monotonic() >= next_try:
            try:
                feed = feed or _open_feed(folder)
                feed.advance()
                cells.advance()
                pause, next_try = RETRY_SECONDS[0], time.monotonic() + BATCH_SECONDS
            except Exception as error:  # see send
                _fail(folder, error)
                feed, next_try = None, time.monotonic() + pause
                pause = min(2.0 * pause, RETRY_SECONDS[1])
        time.sleep(POLL_SECONDS)
    with suppress(Exception):  # a cell that could not be sent is a leftover
        cells.advance()
    reason = send(folder)
    if reason is not None and "locked" in reason:  # many runs that end at once queue for one database file
        reason = send(folder)
    return reason is None


class Cells:
    """The runs of a grid's cells, sent as they go. A run that is no grid has none."""

    def __init__(self, grid: Path) -> None:
        self.list, self.read = grid / CELLS, 0
        self.open: dict[Path, Feed | None] = {}

    def advance(self) -> None:
        """Send what is new of every cell, and the whole of those that have ended. Raises what the server raises."""
        self._find_new()
        for folder in list(self.open):
            with _lock(folder, timeout=0.0) as held:
                if not held:
                    continue
                if _has_ended(folder):
                    if self._is_tracked(folder) and (reason := send(folder)) is not None:
                        raise ConnectionError(reason)
                    del self.open[folder]
                elif self._is_tracked(folder):
                    feed = self.open[folder] = self.open[folder] or _open_feed(folder)
                    feed.advance()

    def _find_new(self) -> None:
        if self.list.exists():
            lines = self.list.read_text().splitlines(keepends=True)
            self.open |= {Path(line.strip()): None for line in lines[self.read :] if line.endswith("\n")}
            self.read += sum(line.endswith("\n") for line in lines[self.read :])

    @staticmethod
    def _is_tracked(folder: Path) -> bool:
        return records.read(folder) is not None


def _has_ended(folder: Path) -> bool:
    reap_one(folder)
    status = read_status(folder)
    return status is None or status.state != "RUNNING"


def _send_leftovers(own: Path) -> None:
    """Send other runs that are due, within a bounded time. A server that has failed is not asked again."""
    end = time.monotonic() + LEFTOVER_SECONDS
    record = records.read(own)
    down = {record.uri} if record is not None and record.error else set()
    for folder in run_folders(own.parent):
        record = records.read(folder) if _is_due(folder) else None
        if record is None or record.uri in down or folder == own:
            continue
        if time.monotonic() > end:
            return
        with _lock(folder, timeout=0.0) as held:
            if held and send(folder) is not None:
                down.add(record.uri)


def _is_due(folder: Path) -> bool:
    record = records.read(folder)
    return record is not None and record.is_due(read_status(folder))


def _open_feed(folder: Path) -> Feed:
    from pipeline.tracking_store import Feed  # a second of imports

    record = records.read(folder)
    assert record is not None
    return Feed(folder, record, *_store(record.uri, record.experiment))


@cache
def _store(uri: str, experiment: str) -> tuple[Any, str]:
    from pipeline.tracking_store import open_store

    return open_store(uri, experiment)


def _fail(folder: Path, error: Exception) -> str:
    _store.cache_clear()
    record = records.read(folder)
    reason = reason_of(error, record.uri if record is not None else str(folder))
    print(f"{time.strftime('%H:%M:%S')} {folder.name}: {reason}", file=sys.stderr, flush=True)
    if record is not None:
        with suppress(OSError):  # the log, at least, has it
            records.write(folder, replace(record, error=reason))
    return reason


@contextmanager
def _lock(folder: Path, timeout: float) -> Iterator[bool]:
    """The right to send this run. False where another process has it, or where the folder cannot be written."""
    lock = filelock.FileLock(folder / "mlflow.lock", timeout=timeout)
    try:
        lock.acquire()
    except (filelock.Timeout, OSError) as error:
        print(f"{folder.name}: {error}", file=sys.stderr)
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _prepare() -> None:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _step_back() -> None:
    """The training comes first: the tracker runs when a core would be idle."""
    with suppress(OSError):  # a system that forbids it: the tracker is small all the same
        os.nice(19)
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
