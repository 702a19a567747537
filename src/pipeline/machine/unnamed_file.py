"""Bytes that may be more than memory holds: few stay in memory, many lie in a file without a name, which is mapped."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from pipeline.errors import UserError

SMALL = 16 * 2**20  # bytes that stay in memory


def kept(pieces: Iterable[bytes | memoryview], folder: Path | None, who: str) -> bytes | memoryview:
    """All pieces, one after the other. More than SMALL bytes lie in a file in `folder`; with None all are in memory.

    The file has no name and ends with what maps it. Raises UserError, which begins with `who`, where it cannot be
    written.
    """
    held, size, left = list[bytes | memoryview](), 0, iter(pieces)
    for piece in left:
        held.append(piece)
        size += memoryview(piece).nbytes
        if folder is not None and size > SMALL:
            return _written(chain(held, left), folder, who)
    return b"".join(held)


def _written(pieces: Iterable[bytes | memoryview], folder: Path, who: str) -> memoryview:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise UserError(
            f"{who}: cache folder {folder}: cannot write the text to a temporary file: {error.strerror or error}; "
            "name another with PIPELINE_CACHE, on a disk with room for it"
        ) from error
