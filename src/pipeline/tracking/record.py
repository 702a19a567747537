"""`<run>/mlflow.json`: where a run's journal goes to in MLflow and how far it has got. No mlflow in here."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pipeline.machine.regular_file import open_regular, read_regular
from pipeline.runs.json_files import parsed, write_json
from pipeline.runs.records import Status

NAME = "mlflow.json"
CELLS = "cells.txt"  # in the folder of a grid's run: its cells' runs, a line each
DEFAULT_URI = "sqlite:///mlflow.db"
LAST_BYTES = 4096
OPTIONS = ("timeout", "isolation_level", "cached_statements", "check_same_thread", "detect_types")  # SQLAlchemy's
SCHEMES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks")


@dataclass(frozen=True, kw_only=True)
class Record:
    """How far one journal has been sent. `offset` counts bytes of metrics.jsonl that MLflow has confirmed.

    `last`: a hash of the last of these bytes. A run that goes on may have cut them off, and written others (each line
    has the time at which it was written).
    """

    uri: str
    experiment: str
    folder: str | None = None  # for which it was written: `original`
    artifacts: bool = True  # whether the run's files are sent too
    grid: str | None = None  # the folder of the grid's run, for a cell of one
    run_id: str | None = None
    offset: int = 0
    last: str | None = None
    synced: bool = False
    state: str | None = None  # the terminal state that was sent; the run's files come after it
    ended: float | None = None  # when that end was: a run that goes on may end alike
    error: str | None = None  # why the last attempt failed, or which files could not be sent

    def unsent(self) -> Record:
        """The same, to be sent from the beginning. What is there already is found and stays as it is."""
        return replace(self, offset=0, last=None, synced=False, state=None, ended=None, error=None)

    def stands(self, folder: Path) -> bool:
        """Whether what was sent is still what the journal has. Raises OSError where that cannot be read."""
        return self.last is None or last_bytes(folder, self.offset) == self.last

    @property
    def waits_for_sync(self) -> bool:
        """Whether the run has its end in MLflow and not all the rest: only the user has its files sent once more."""
        return self.state is not None and self.error is not None

    def is_due(self, status: Status | None) -> bool:
        """Whether the run is over and MLflow does not have all of it."""
        if status is None or status.state == "RUNNING":
            return False
        return not (self.synced and self.has_end(status))

    def has_end(self, status: Status) -> bool:
        """Whether this end was sent, and not one from before the run went on: the tracker of that time may write last.

        Older records have no time.
        """
        return self.state == status.state and self.ended in (None, status.ended)


def last_bytes(folder: Path, offset: int) -> str:
    """A hash of the bytes before `offset` of the journal; empty where it does not reach that far. Raises OSError."""
    begin = max(offset - LAST_BYTES, 0)
    with open_regular(folder / "metrics.jsonl") as file:
        file.seek(begin)
        data = file.read(offset - begin)
    return hashlib.sha256(data).hexdigest() if len(data) == offset - begin else ""


def read(folder: Path) -> Record | None:
    """None for a run that is not tracked, or whose record cannot be read. Of a copy without the original's entry."""
    record = _read(folder)
    if record is None or original(folder) is None:
        return record
    return replace(record, run_id=None, offset=0, last=None)


def original(folder: Path) -> Path | None:
    """The run of which the run in `folder` is a copy, by its record: it still has the same entry.

    None for any other run, for one that was moved too.
    """
    record = _read(folder)
    if record is None or record.folder is None or record.run_id is None or record.folder == str(folder.absolute()):
        return None
    first = Path(record.folder)
    return first if has_entry(first, record.run_id) and not first.samefile(folder) else None


def has_entry(folder: Path, run_id: str, uri: str | None = None) -> bool:
    """Whether the run in `folder` is there and has this entry, on the server `uri` where that is given."""
    record = _read(folder)
    return record is not None and record.run_id == run_id and uri in (None, record.uri)


def grid_of(cell: Path, record: Record) -> Record | None:
    """The record of the grid that the run in `cell` is part of. Found beside it, too: both may have been moved."""
    if record.grid is None:
        return None
    named = Path(record.grid)
    return read(named) or read(cell.parent / named.name)


def note_cell(grid: Path, run: Path) -> None:
    """Add a cell's run to those of the grid: by its name, since the folder above may have any name. Raises OSError."""
    with (grid / CELLS).open("ab") as file:
        file.write(os.fsencode(run.name if run.parent == grid.parent else run) + b"\n")


def noted_cells(grid: Path) -> list[Path]:
    """The runs of a grid's cells. Raises OSError."""
    lines = (grid / CELLS).read_bytes().split(b"\n")[:-1]  # without a line that is being written
    return [grid.parent / os.fsdecode(line) for line in lines]


def write(folder: Path, record: Record) -> None:
    """Atomic. For its owner alone: the address may hold a password, without which nothing could be sent later.

    Raises OSError.
    """
    write_json(folder / NAME, asdict(replace(record, folder=str(folder.absolute()))), mode=0o600)


def _read(folder: Path) -> Record | None:
    try:
        return Record(**parsed(read_regular(folder / NAME)))
    except (OSError, ValueError, TypeError):
        return None


def check_uri(uri: str) -> str:
    """`uri` with a relative database path made absolute. ValueError for what MLflow cannot or no longer track to."""
    scheme = uri.partition(":")[0].partition("+")[0]
    if scheme not in SCHEMES or ("://" not in uri and uri != "databricks"):
        raise ValueError(
            "not a tracking server; choose sqlite:///<file>, http(s)://<host>:<port> or a database URI "
            "(MLflow's file store, a plain path or file:, takes no new runs)"
        )
    path = sqlite_path(uri)
    if path is not None and ("?" in str(path.parent) or re.search("%[0-9a-fA-F]{2}", str(path))):
        raise ValueError(
            f"{path} as a database's address is another file, for the ? or the %XX in it; name a database elsewhere, "
            "as tracking.uri=sqlite:///<file>"
        )
    if path is None:
        return uri
    _check_options(_options(uri))
    return f"sqlite:///{path}{_options(uri)}"


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of the database of a sqlite URI, without the options behind it; None for a server."""
    if not uri.startswith("sqlite"):
        return None
    name = uri.partition(":///")[2].removesuffix(_options(uri))
    if not name or name == ":memory:":
        raise ValueError("a database in memory dies with the tracker; give sqlite:///<file>")
    return Path(name).resolve()


def _check_options(options: str) -> None:
    """Refuse what SQLAlchemy would leave out without a word, with the rest of a file's name, perhaps. ValueError."""
    names = [one.partition("=")[0] for one in options[1:].split("&") if one]
    if "uri" in names:  # SQLAlchemy would hand the address to SQLite, which finds another file's name in it
        raise ValueError("the option uri is for SQLite's own addresses, sqlite:///file:...; give sqlite:///<file>")
    for name in names:
        if name not in OPTIONS:
            raise ValueError(
                f"no option {name!r} of a SQLite database, which is what follows a ?; choose from {', '.join(OPTIONS)}"
            )


def _options(uri: str) -> str:
    """What follows the file of a database's address, such as `?timeout=9`; a folder's `?` is refused (check_uri)."""
    return "".join(uri.rpartition("/")[2].partition("?")[1:])
