"""JSON files of a run: each replaced in one step, so that no reader sees half of one.

JSON has no NaN and no infinity. They are written as the strings "NaN", "Infinity" and "-Infinity", which every JSON
reader takes and which `float()` turns back.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from pipeline.errors import UserError
from pipeline.machine.regular_file import read_regular


def cannot_write(path: Path, error: OSError, key: str = "output_dir: ") -> UserError:
    """The message for a file that the system refused: which, why, and how much room is left where that is the reason.

    `key`: what moves it.
    """
    if dangling := dangling_link(path):
        return UserError(f"{key}cannot write {path}: {dangling}")
    if error.errno == errno.EEXIST and path.is_file():
        return UserError(f"{key}cannot write {path}: it is a file, not a folder")
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"{key}cannot write {path}: {error.strerror or error}")
    place = next((parent for parent in (path, *path.parents) if parent.is_dir()), Path("/"))
    try:
        room = f"; {shutil.disk_usage(place).free / 1e6:,.0f} MB free"
    except OSError:
        room = ""
    return UserError(f"{key}cannot write {path}: {error.strerror or error}{room}")


def disk_refused(error: BaseException, folder: Path) -> UserError | None:
    """The message for an error of the disk (full, read-only), wherever it came up while a run with this folder ran.

    None for any other error.
    """
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
        return None
    path = Path(error.filename or folder).absolute()
    return cannot_write(path, error) if path.is_relative_to(folder) else cannot_write(path, error, key="")


def dangling_link(path: Path) -> str | None:
    """That `path`, or a folder above it, is a link that leads nowhere, in words; None where none is."""
    with contextlib.suppress(OSError):  # a folder that may not be entered, a name that is too long
        for one in (path, *path.parents):
            if one.is_symlink() and not one.exists():
                return f"{one} is a link to {one.readlink()}, which does not exist"
    return None


def parsed(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError, also for one that is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object such as the receipt; empty where the file does not exist (yet) or is not one."""
    try:
        return object_of(read_regular(path))
    except OSError:
        return {}


def object_of(text: bytes) -> dict[str, Any]:
    """The JSON object that a text is; empty where it is none."""
    try:
        value = parsed(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: Mapping[str, Any], *, sync: bool = False, mode: int = 0o666) -> None:
    """Replace `path` in one step, so that no reader sees half of it; `mode` as for a new file. Raises OSError."""
    data = json.dumps(plain(value), indent=1, allow_nan=False).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: NumPy and tensor values become numbers and lists, NaN and infinities strings."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _name_of(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in the journal: {value!r}")


def overwrite(path: Path, value: Mapping[str, Any]) -> None:
    data = json.dumps(plain(value)).encode()
    file = os.open(path, os.O_WRONLY)
    try:
        write_all(file, data, 0)
        os.ftruncate(file, len(data))
    finally:
        os.close(file)


def _name_of(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, offset)
        view, offset = view[count:], offset + count
