"""Which files this process opens for reading, and which folders it lists, while it imports the user's modules.

Observed by Python's audit events. A library that opens a file without Python (HDF5, Arrow, SQLite) raises none.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

LISTING = ("os.listdir", "os.scandir")
State = tuple[int, int, int]  # size in bytes, time of change in ns, inode

_opened: dict[str, State | None] = {}  # as each file was when it was last opened; None: this process wrote it then
_listed: set[str] = set()
_watching = False


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Note what is opened and listed in here. The hook stays for the life of the process, and does nothing outside."""
    global _watching
    _hook()
    _watching = True
    try:
        yield
    finally:
        _watching = False


def opened(file: Path) -> bool:
    """Whether the file was opened for reading."""
    return os.path.realpath(file) in _opened


def listed(folder: Path) -> bool:
    """Whether the folder was listed; what Python's own imports list does not count."""
    return os.path.realpath(folder) in _listed


def edited(file: Path) -> bool:
    """Whether somebody else has changed the file since it was opened."""
    state = _opened.get(os.path.realpath(file))
    return state is not None and state != _state(file)


@cache
def _hook() -> None:
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching or (event != "open" and event not in LISTING):
        return
    with contextlib.suppress(OSError, TypeError, ValueError):  # a descriptor, a file that is not there
        if event == "open":
            _note_open(os.path.realpath(os.fsdecode(arguments[0])), arguments[2])
        elif not sys._getframe(1).f_code.co_filename.startswith("<frozen importlib"):
            _listed.add(os.path.realpath(os.fsdecode(arguments[0] or ".")))


def _note_open(path: str, flags: int) -> None:
    """`flags`: of open(2). What is emptied when it is opened, or opened at its end, as a log is, is not read."""
    access = flags & os.O_ACCMODE
    if access != os.O_WRONLY and not flags & (os.O_TRUNC | os.O_APPEND):
        _opened[path] = _state(path)
    if access != os.O_RDONLY and path in _opened:
        _opened[path] = None


def _state(file: str | Path) -> State | None:
    status = Path(file).stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
