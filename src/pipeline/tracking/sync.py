"""`python -m pipeline.tracking sync`: the runs of a folder are sent to MLflow, moved to another server or rebuilt."""

from __future__ import annotations

from pathlib import Path

from pipeline.cli.streams import printable
from pipeline.runs.lookup import reap, run_folders
from pipeline.runs.records import read_status
from pipeline.tracking import record as records
from pipeline.tracking.follow import is_cell, is_down, is_due, lock, prepare, send


def sync(root: Path, uri: str | None = None, *, force: bool = False) -> int:
    """Send the finished runs below `root`, a line for each. Exit status 1 where not all of one could be sent.

    Those that MLflow does not have yet; with `uri` all that are not tracked to there, which moves them; with `force`
    all again, which rebuilds a lost database and adds nothing to one that is there.
    """
    prepare()
    reap(root)
    due = [folder for folder in run_folders(root) if is_due(folder, uri, again=force)]
    failed = 0
    absent: set[str] = set()  # runs that are not there, not even in part
    down: dict[str, str] = {}  # servers that do not answer, which each further run would wait for again
    for folder in sorted(due, key=is_cell):  # a cell's parent in MLflow is the run of its grid
        record = records.read(folder)
        assert record is not None
        target = uri or record.uri
        reason = down.get(target) or _wait_for_grid(folder.parent, record, uri, absent)
        if reason is None:
            with lock(folder, timeout=0.0) as busy:
                reason = send(folder, uri, again=force) if busy is None else busy
            if reason is not None and busy is None and is_down(target, record.experiment):
                down[target] = reason
        record = records.read(folder)
        if record is None or record.uri != target or record.run_id is None:
            absent.add(folder.name)
        failed += reason is not None
        print(printable(f"{folder.name}: {_line(folder, target, reason)}"))
    if not due:
        print(printable(f"{root}: nothing to sync"))
    return 1 if failed else 0


def _line(folder: Path, uri: str, reason: str | None) -> str:
    record = records.read(folder)
    if reason is None:
        return f"synced as run {record and record.run_id}"
    there = record is not None and record.uri == uri and record.state is not None
    return f"run {record and record.run_id}, but {reason}" if there else f"not sent: {reason}"


def _wait_for_grid(root: Path, record: records.Record, uri: str | None, absent: set[str]) -> str | None:
    """Why a cell is not sent before the run of its grid, to which it would lose its tie."""
    if record.grid is None:
        return None
    name = Path(record.grid).name
    status = read_status(root / name)
    if name in absent:
        return f"the run of its grid, {name}, is not there"
    if uri not in (None, record.uri) and status is not None and status.state == "RUNNING":
        return f"its grid, {name}, is still running"
    return None
