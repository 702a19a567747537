"""How much of a file Linux keeps in its page cache."""

from __future__ import annotations

import ctypes
import mmap
import os


def resident(handle: int) -> float:
    """The share of an open file's pages that are in memory, by mincore(2). Raises OSError."""
    size = os.fstat(handle).st_size
    with mmap.mmap(handle, size, access=mmap.ACCESS_COPY) as mapped:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        mincore = ctypes.CDLL(None, use_errno=True).mincore
        failed = mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), pages)
        del first  # which keeps the map open
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) / len(pages)
