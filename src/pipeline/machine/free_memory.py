"""How much memory this process can still have."""

from __future__ import annotations

import contextlib
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """What the machine has free, and no more than the process's control groups leave."""
    import psutil

    return min([int(psutil.virtual_memory().available), *free_in_groups(GROUPS, own_group())])


def own_group() -> str:
    """This process's group among Linux's control groups of version 2; empty where there are none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")


def free_in_groups(root: Path, group: str) -> list[int]:
    """Bytes that are left in `group` below `root`, and in each group around it, where there is a limit.

    What a group uses includes the page cache, which Linux gives up before it kills anything: it counts as free.
    Source: Documentation/admin-guide/cgroup-v2.rst of Linux, "memory.current" and "memory.stat".
    """
    folder, found = root / group, []
    while True:
        with contextlib.suppress(OSError, ValueError):  # a root has no limit, and "max" is none
            limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
            found.append(limit - used + _page_cache(folder))
        if folder == root:
            return found
        folder = folder.parent


def _page_cache(folder: Path) -> int:
    """Bytes of files that a group keeps in memory; 0 where Linux does not say."""
    try:
        named = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return 0
    return int(named.get("inactive_file", 0)) + int(named.get("active_file", 0))
