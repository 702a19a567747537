"""How much memory a training had, in whichever framework, and what is free before one of our solvers begins."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.machine.memory import process_peak_bytes

if TYPE_CHECKING:
    from pipeline.machine.device import Place

GROUPS = Path("/sys/fs/cgroup")


def peak_memory(backend: str, place: Place) -> dict[str, int]:
    """Peak bytes: of the process, and on a GPU also what the framework's allocator gave out."""
    peak = {"process_bytes": process_peak_bytes()}
    if place.kind == "cpu":
        return peak
    if backend == "torch":
        import torch

        given = torch.cuda.max_memory_allocated(place.torch)
    elif backend == "tensorflow":
        import tensorflow as tf

        given = tf.config.experimental.get_memory_info(f"GPU:{place.index}")["peak"]
    else:
        import jax

        given = jax.devices("cuda")[place.index].memory_stats()["peak_bytes_in_use"]
    return {**peak, "device_bytes": int(given)}


def refuse_too_large(needed: int, available: int, what: str, where: str, smaller: str) -> None:
    """Raise UserError where `needed` bytes exceed those that are free: the system would kill the process."""
    if needed > available:
        raise UserError(
            f"out of memory: {what} needs at least {needed / 2**30:.1f} GiB; {where} has {available / 2**30:.1f} GiB "
            f"free; {smaller}"
        )


def free_memory(place: Place) -> int:
    """Bytes that JAX can still have on a device; on the CPU no more than the process's control groups leave."""
    if place.kind == "gpu":
        import jax

        stats = jax.devices("cuda")[place.index].memory_stats()
        return int(stats["bytes_limit"] - stats["bytes_in_use"])
    import psutil

    return min([int(psutil.virtual_memory().available), *free_in_groups(GROUPS, _own_group())])


def _own_group() -> str:
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
