"""Where Triton keeps what it has compiled: beside what our other compilers have made."""

from __future__ import annotations

import os

from pipeline.machine.cache_folder import cache_root

VARIABLE = "TRITON_CACHE_DIR"


def keep_compiled() -> None:
    """In the cache folder, unless the user has named another to Triton."""
    os.environ.setdefault(VARIABLE, str(cache_root(None) / "kernels" / "triton"))
