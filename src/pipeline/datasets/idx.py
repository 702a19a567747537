"""IDX, the format of MNIST's files: two zero bytes, a dtype code, the number of dimensions, each as big-endian uint32,
then the array in C order. Described at https://yann.lecun.com/exdb/mnist/ ("the IDX file format").
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pipeline.errors import UserError
from pipeline.machine.regular_file import open_regular

GZIP_MAGIC = b"\x1f\x8b"
PIECE = 1 << 20  # bytes
UINT8 = 0x08  # the one dtype code that the published sets use


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in the IDX file at `path`, gzipped or raw. Raises UserError if it is anything else."""
    try:
        with open_regular(path) as raw:
            content = _announced(unzipped(raw))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip file: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_idx(np.frombuffer(content, np.uint8), str(path)).copy()  # a copy, because bytes cannot be written to


def unzipped(raw: BinaryIO) -> BinaryIO | gzip.GzipFile:
    """The content of a file that may be gzipped."""
    zipped = raw.read(2) == GZIP_MAGIC
    raw.seek(0)
    return gzip.GzipFile(fileobj=raw) if zipped else raw


def _announced(stream: BinaryIO | gzip.GzipFile) -> bytes:
    """As many bytes as the header announces, and one more, which shows that there are too many.

    A gzip file of a megabyte may unpack to a thousand times that.
    """
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0":
        return head
    sizes = stream.read(4 * head[3])
    shape = struct.unpack(f">{len(sizes) // 4}I", sizes[: len(sizes) // 4 * 4])
    pieces, wanted = [head, sizes], math.prod(shape) + 1
    while wanted > 0 and (piece := stream.read(min(wanted, PIECE))):  # Python makes room for all that it is asked for
        pieces.append(piece)
        wanted -= len(piece)
    return b"".join(pieces)


def parse_idx(content: np.ndarray, name: str) -> np.ndarray:
    """The array in `content`, the uint8 bytes of an IDX file, as a view of it. `name` is what an error calls it."""
    head = content[:4].tobytes()
    if len(head) < 4 or head[:2] != b"\0\0":
        raise UserError(f"{name}: not an IDX file: expected it to begin 00 00 08, found {head.hex(' ') or 'nothing'}")
    if head[2] != UINT8:
        raise UserError(f"{name}: IDX file of dtype code 0x{head[2]:02x}; only uint8 (0x08) is read")
    start = 4 + 4 * head[3]
    if len(content) < start:
        raise UserError(f"{name}: truncated: expected {start:,} bytes of header, found {len(content):,}")
    shape = struct.unpack(f">{head[3]}I", content[4:start].tobytes())
    expected = start + math.prod(shape)
    if len(content) != expected:
        fault = "truncated" if len(content) < expected else "too long"
        found = f"{len(content):,}" if len(content) < expected else "more"
        raise UserError(f"{name}: {fault}: shape {shape} needs {expected:,} bytes, found {found}")
    try:
        return content[start:].reshape(shape)
    except ValueError as error:  # more dimensions than NumPy has
        raise UserError(f"{name}: not an array that NumPy can hold: {error}") from error
