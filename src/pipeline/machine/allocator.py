"""What a training step frees is kept for the next one.

glibc gives large blocks back to the system as soon as they are free, and the next step takes them anew, every page
zeroed by the kernel on first touch: 10,000 page faults a step of the net of row B1, a tenth of its time and more
(see docs/decisions.md, 2026-11-21). The numbers that are computed do not change.
"""

from __future__ import annotations

import ctypes

# mallopt(3). Blocks from 32 MiB on, glibc's own limit for this setting, are still given back.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
SETTINGS = {M_MMAP_THRESHOLD: 32 * 2**20, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 64 * 2**20}


def keep_freed_memory() -> None:
    """For the whole process. Does nothing where the C library is not glibc."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        for setting, value in SETTINGS.items():
            libc.mallopt(setting, value)


def give_back_freed_memory() -> None:
    """To the system, now: what is allocated next is then seen as memory of this process. Only of glibc."""
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)
