"""IDX, the format of MNIST's files: two zero bytes, a dtype code, the number of dimensions, each as big-endian uint32,
then the array in C order. Described at https://yann.lecun.com/exdb/mnist/ ("the IDX file format").
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from pipeline.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"
UINT8 = 0x08  # the one dtype code that the published sets use


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in the IDX file at `path`, gzipped or raw. Raises UserError if it is anything else."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if content.startswith(GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{path}: damaged gzip file: {error}") from error
    return parse_idx(np.frombuffer(content, np.uint8), str(path)).copy()  # a copy, because bytes cannot be written to


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
        raise UserError(f"{name}: {fault}: shape {shape} needs {expected:,} bytes, found {len(content):,}")
    try:
        return content[start:].reshape(shape)
    except ValueError as error:  # more dimensions than NumPy has
        raise UserError(f"{name}: not an array that NumPy can hold: {error}") from error
