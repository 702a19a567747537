"""Files that somebody else has put there and named: only regular ones. Opening a named pipe would wait for ever."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path) -> BufferedReader:
    """The file at `path`, opened for reading. Raises OSError, also for a pipe, a device or a folder."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # O_NONBLOCK: a pipe opens at once
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, os.strerror(code) if stat.S_ISDIR(mode) else "not a regular file", str(path))
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def read_regular(path: Path) -> bytes:
    """All of the file at `path`. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def as_named(text: str) -> Path:
    """A path as the user writes it: `~` is a home folder, if there is one of that name."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  # pathlib raises RuntimeError for an unknown user


def fault_of(path: Path) -> str | None:
    """Why there is no regular file at `path`; None where there is one."""
    if path.is_file():
        return None
    return "not a regular file" if path.exists() else "no such file"
