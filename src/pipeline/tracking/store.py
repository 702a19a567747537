"""MLflow, as far as the pipeline knows it: open the store, and put a journal into it. Only the tracker imports this.

Sending the same thing twice changes nothing: a run is found by its tag `pipeline.run`, and a metric's time comes from
the journal, so that a repeated point has the key that the first one has. MLflow keeps NaN; it keeps an infinity as the
largest double of its sign (1.8e308).
"""

from __future__ import annotations

import getpass
import importlib
import json
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import filelock
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking.client import MlflowClient

from pipeline.passwords import without_password
from pipeline.runs.json_files import read_json
from pipeline.runs.records import Status, read_chunk, read_config, read_status
from pipeline.runs.result import metrics_of, read_result
from pipeline.tracking import record as records
from pipeline.tracking.artifacts import upload
from pipeline.tracking.names import legal_name

METRICS_A_BATCH = 1000  # MLflow's limit
ENTRIES_A_BATCH = 50  # params or tags; the limit is 100, but also 1 MB a request
PARAM_LENGTH = 6000
TAG_LENGTH = 5000
PARENT = "mlflow.parentRunId"
DESCRIPTION = "mlflow.note.content"  # Markdown, which the page of a run shows above its metrics
CREATE_SECONDS = 120.0  # eight trackers that queue for a cold database on a busy machine

# Types of file systems that several machines may have mounted (statfs(2) and their own documentation).
SHARED = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p"}
SHARED |= {"orangefs", "pvfs2", "panfs", "wekafs", "ocfs2", "gfs2", "virtiofs", "fuse", "fuseblk"}

T = TypeVar("T")


class Feed:
    """Puts one journal into MLflow, from where `record` says that it stands."""

    def __init__(self, folder: Path, record: records.Record, client: MlflowClient, experiment_id: str) -> None:
        self.folder = folder
        self.record = record
        self.client = client
        self.experiment_id = experiment_id
        self._checked = self._has_config = False

    def advance(self) -> None:
        """Send the config, once, and every whole line of metrics.jsonl that has not been sent.

        MLflow takes nothing back: where the run went on from before what was sent, and came to other numbers, the
        entry that has those of no run is deleted, and another one made.
        """
        if not self.record.stands(self.folder):
            self._begin_anew()
        run_id = self._run_id()
        if not self._has_config:
            self._go_on(run_id)
            self._log_config(run_id)
            self._has_config = True
        while True:
            lines, offset = read_chunk(self.folder, self.record.offset)
            last = records.last_bytes(self.folder, offset) if offset else None  # before it is sent: a run may go on
            points = [
                Metric(legal_name(name), value, _milliseconds(line.time), line.step)
                for line in lines
                for name, value in line.metrics.items()
            ]
            for batch in _batches(points, METRICS_A_BATCH):
                self.client.log_batch(run_id, metrics=batch)
            if offset == self.record.offset:
                break
            self._save(offset=offset, last=last, error=None)
        if self.record.error is not None:
            self._save(error=None)

    def complete(self, status: Status) -> str | None:
        """Send the rest of a run that has ended, how it ended, and then its files.

        Returns which files could not be sent. Raises what the server raises: a run of which something is not taken has
        its end in MLflow all the same.
        """
        ended = _milliseconds(status.ended or status.started)
        try:
            self.advance()
            self._log_outcome(self._run_id(), status, ended)
            self._delete_empty(self._run_id())
        finally:
            # MLflow has no word for a run that a search cut short.
            self.client.set_terminated(self._run_id(), "KILLED" if status.state == "PRUNED" else status.state, ended)
            self._save(state=status.state, ended=status.ended, error=None)
        unsent = upload(self.client, self._run_id(), self.folder) if self.record.artifacts else None
        self._save(synced=unsent is None, error=unsent)
        return unsent

    def _log_outcome(self, run_id: str, status: Status, ended: int) -> None:
        receipt = read_json(self.folder / "receipt.json")
        tags = {f"receipt.{name}": value for name, value in flatten(receipt).items()}
        if status.error:
            tags["error"] = status.error
        there = self.client.get_run(run_id).data.tags
        if not status.error and "error" in there:  # it was stopped, and has gone on
            self.client.delete_tag(run_id, "error")
        if DESCRIPTION not in there:  # else the user may have written one
            tags |= _description(self.folder)
        self._log_tags(run_id, tags)
        found = metrics_of(self.folder).values()
        final = [Metric(legal_name(f"result/{one.name}"), one.value, ended, 0) for one in found]
        for batch in _batches(final, METRICS_A_BATCH):
            self.client.log_batch(run_id, metrics=batch)

    def _run_id(self) -> str:
        """The run in MLflow, made (or found again, where a tracker died before it could note it) when first asked."""
        if self._checked and self.record.run_id is not None:
            return self.record.run_id
        run_id = self.record.run_id if self._exists(self.record.run_id) else self._find()
        parent = self._parent()
        if run_id is not None and parent is not None:  # it may have come before the run of its grid
            self.client.set_tag(run_id, PARENT, parent)
        if run_id is None or run_id != self.record.run_id:
            run_id = run_id or self._create(parent)
            self._save(run_id=run_id, offset=0, last=None)
        self._checked = True
        return run_id

    def _go_on(self, run_id: str) -> None:
        """A run that was stopped and runs again does so in MLflow too; the old end's time stays until the new end."""
        status, run = read_status(self.folder), self.client.get_run(run_id)
        if status is None or status.state != "RUNNING" or run.info.status == "RUNNING":
            return
        if "error" in run.data.tags:
            self.client.delete_tag(run_id, "error")
        self.client.update_run(run_id, "RUNNING")  # which can take no time back

    def _begin_anew(self) -> None:
        if self.record.run_id is not None and self._exists(self.record.run_id):
            self.client.delete_run(self.record.run_id)
        self._checked = self._has_config = False
        self._save(run_id=None, offset=0, last=None)

    def _exists(self, run_id: str | None) -> bool:
        if run_id is None:
            return False
        try:
            return bool(self.client.get_run(run_id).info.lifecycle_stage == "active")  # not one deleted on its page
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # the database was thrown away: begin again
                return False
            raise

    def _find(self) -> str | None:
        mine = [run for run in self._of_this_name() if not self._is_anothers(run)]
        return str(mine[0].info.run_id) if mine else None

    def _of_this_name(self) -> Sequence[Run]:
        return self.client.search_runs([self.experiment_id], f"tags.`pipeline.run` = '{self.folder.name}'")

    def _delete_empty(self, run_id: str) -> None:
        """Delete what a slow server made beside the run's entry, for requests that were given up and sent again."""
        for run in self._of_this_name():
            data, about = run.data, run.info
            empty = not data.params and not data.metrics and data.tags.get("pipeline.folder") == str(self.folder)
            if empty and about.run_id != run_id:
                self.client.delete_run(about.run_id)

    def _is_anothers(self, run: Run) -> bool:
        """Whether an entry is that of a run of the same name in another folder, of which this one is a copy."""
        first = Path(run.data.tags.get("pipeline.folder", self.folder))
        return records.has_entry(first, run.info.run_id, self.record.uri) and not first.samefile(self.folder)

    def _parent(self) -> str | None:
        """MLflow's id of the run of the grid that this run is a cell of."""
        grid = records.grid_of(self.folder, self.record)
        return grid.run_id if grid is not None and grid.uri == self.record.uri else None

    def _create(self, parent: str | None) -> str:
        status = read_status(self.folder)
        assert status is not None
        tags = {
            "pipeline.run": self.folder.name,
            "pipeline.folder": str(self.folder),
            "mlflow.source.name": "pipeline",
        }
        tags["mlflow.user"] = _user()
        if parent is not None:
            tags[PARENT] = parent
        run = self.client.create_run(self.experiment_id, _milliseconds(status.started), tags, self.folder.name)
        return str(run.info.run_id)

    def _log_config(self, run_id: str) -> None:
        config = flatten(read_config(self.folder))
        params = [Param(legal_name(name), _cut(value, PARAM_LENGTH)) for name, value in config.items()]
        for batch in _batches(params, ENTRIES_A_BATCH):
            self.client.log_batch(run_id, params=batch)

    def _log_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        entries = [RunTag(legal_name(name), _cut(value, TAG_LENGTH)) for name, value in tags.items()]
        for batch in _batches(entries, ENTRIES_A_BATCH):
            self.client.log_batch(run_id, tags=batch)

    def _save(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)
        records.write(self.folder, self.record)


def _description(folder: Path) -> dict[str, str]:
    """What the run reported, as the description of its page; nothing where it has no result."""
    result = read_result(folder)
    if result is None or not result.table:
        return {}
    rows = [(name, value.replace("|", "\\|")) for name, value in result.table]
    lines = [f"| {name} | {value} |" for name, value in (("", "reported"), ("---", "---"), *rows)]
    return {DESCRIPTION: "\n".join(lines)}


def open_store(uri: str, experiment: str) -> tuple[MlflowClient, str]:
    """The client and the experiment's id. A database file is made if there is none, with its artifacts beside it."""
    path = records.sqlite_path(uri)
    if path is None:
        client = MlflowClient(uri, registry_uri=uri)
        return client, _experiment_id(client, experiment, None)
    with _database(path):
        client = MlflowClient(uri, registry_uri=uri)
        return client, _experiment_id(client, experiment, path.parent / "mlruns")


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as `a.b: text`. A `_target_` gives its class name to the node that it stands in: `model: Mlp`.

    Of the user's classes with the module, since two modules may have classes of one name: `model: lab.a.Net`.
    """
    found: dict[str, str] = {}
    for key, item in value.items():
        if key == "_target_":
            if prefix:
                found[prefix] = str(item).rpartition(".")[2] if str(item).startswith("pipeline.") else str(item)
        elif isinstance(item, Mapping) and item:
            found.update(flatten(item, f"{prefix}.{key}" if prefix else str(key)))
        else:
            text = item if isinstance(item, str) else json.dumps(item, default=str)
            found[f"{prefix}.{key}" if prefix else str(key)] = without_password(text)
    return found


@contextmanager
def _database(path: Path) -> Iterator[None]:
    """Hold the lock beside the database while it is opened, where that makes what is missing: of several that do so at
    once, all but one die. One that is whole is opened by all at once: on a busy machine that takes them long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    os.chdir(path.parent)  # MLflow puts the artifacts of its own Default experiment below the current folder
    with nullcontext() if _is_whole(path) else filelock.FileLock(f"{path}.lock", timeout=CREATE_SECONDS):
        if not path.exists() or (path.is_file() and path.stat().st_size == 0):
            _create_database(path)
        _check_database(path)
        yield


def _is_whole(path: Path) -> bool:
    """Whether a database has all of MLflow's tables; one of an older version gets the others as it is opened."""
    from mlflow.store.db.base_sql_model import Base

    importlib.import_module("mlflow.store.tracking.sqlalchemy_store")  # by which `Base` knows them
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=20.0)) as connection:
            there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:  # also where there is none yet
        return False
    return there.issuperset(Base.metadata.tables)


def _create_database(path: Path) -> None:
    """Make it under another name: MLflow cannot open one whose making was interrupted (it takes 2.6 s)."""
    new, copy = path.with_name(f"{path.name}.new"), path.with_name(f"{path.name}.copy")
    _remove(new)
    try:
        _check_database(new)
        MlflowClient(f"sqlite:///{new}", registry_uri=f"sqlite:///{new}").search_experiments(max_results=1)
        with closing(sqlite3.connect(new)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)  # MLflow still holds the first one open; the copy is nobody's
        copy.replace(path)
    finally:  # also on a full disk, whose room these would take
        _remove(new)
        _remove(copy)


def _remove(path: Path) -> None:
    """A database with the files that SQLite keeps beside it."""
    for end in ("", "-wal", "-shm", "-journal"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def _check_database(path: Path) -> None:
    """Fail at once on what MLflow would try again for a quarter of an hour, such as a folder or a read-only file."""
    mode = journal_mode(path, mounted())
    with closing(sqlite3.connect(path, timeout=20.0, isolation_level=None)) as connection:
        if connection.execute("PRAGMA journal_mode").fetchone() != (mode,):
            connection.execute(f"PRAGMA journal_mode={mode}")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def journal_mode(path: Path, mounts: Mapping[str, str]) -> str:
    """SQLite's journal mode for a database: write-ahead on a local disk, a rollback journal where machines share it.

    With a write-ahead log readers and one writer do not wait for each other, but all of them must share memory: "WAL
    does not work over a network filesystem" (sqlite.org/wal.html). `mounts`: the file system's type by its folder.
    """
    here = next(str(folder) for folder in (path, *path.parents) if str(folder) in mounts)
    kind = mounts[here]
    return "delete" if kind in SHARED or kind.startswith("fuse.") else "wal"


def mounted() -> dict[str, str]:
    """The type of each mounted file system by its folder; the last one mounted there counts."""
    import psutil

    return {"/": "unknown"} | {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}


def _experiment_id(client: MlflowClient, name: str, artifacts: Path | None) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        if artifacts is not None and str(found.artifact_location).startswith("mlflow-artifacts:"):
            raise ValueError(
                f"a server made the experiment {name} and keeps its artifacts; give tracking.uri=http://<that server>, "
                "or choose another tracking.experiment"
            )
        return str(found.experiment_id)
    location = None if artifacts is None else (artifacts / re.sub(r"[^\w.-]+", "_", name)).as_uri()
    try:
        # The kind decides which of its two faces MLflow's page shows: models here, not chat traces.
        kind = {"mlflow.experimentKind": "custom_model_development"}
        return str(client.create_experiment(name, artifact_location=location, tags=kind))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        found = client.get_experiment_by_name(name)  # another tracker was quicker
        assert found is not None
        return str(found.experiment_id)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _batches(entries: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for begin in range(0, len(entries), size):
        yield entries[begin : begin + size]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for this user
        return "unknown"
