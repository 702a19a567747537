"""Memory: what a training needs at least, what is free, and one sentence for an allocation that failed."""

from __future__ import annotations

import resource
from pathlib import Path

from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.machine.device import gpus

# As the frameworks say it, and the libraries below them, each in its own words where a GPU's memory is full:
# CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED.
OUT_OF_MEMORY = (
    "outofmemory",
    "out of memory",
    "out_of_memory",
    "memoryerror",
    "resource_exhausted",
    "resourceexhausted",
    "bad_alloc",
    "alloc_failed",
    "allocation_failed",
    "the resource allocation failed",
    "can't allocate memory",
    "cannot allocate memory",
)

forked = False  # whether this process began as a fork of one that had imported the framework (`sweep/worker.py`)


def process_bytes() -> int:
    """What this process has in RAM now."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def process_peak_bytes() -> int:
    """The most memory that this process has had in RAM: framework, data and all.

    Not by getrusage where /proc says it: that figure outlives exec, and would be the peak of whoever started the run.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_process_peak() -> bool:
    """Have `process_peak_bytes` count from now on; whether that could be done.

    Source: Documentation/filesystems/proc.rst of Linux, "clear_refs".
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether any framework's error is an allocation that failed."""
    text = f"{type(error).__name__} {error}".lower()
    return any(sign in text for sign in OUT_OF_MEMORY)


def still_free(free: int, limit: int | None, reserved: int, given_out: int) -> int:
    """Bytes of a GPU that a framework can still give out, in this process.

    `free`: by the driver, which does not count what the framework has `reserved` for its own pool; of that it has
    `given_out` a part. `limit`: bound on the pool (device.memory_limit), if there is one.
    """
    in_all = free + reserved - given_out
    return in_all if limit is None else min(in_all, limit - given_out)


def refuse_too_large(
    parameters: int, numbers_each: int, bytes_each: int, available: int, where: str, setting: str
) -> None:
    """Raise UserError where weights, gradients and optimizer state alone exceed the memory that is free.

    `setting`: what of the model makes it as large, with its key.
    """
    each = numbers_each * bytes_each
    needed = parameters * each
    if needed > available:
        raise UserError(
            f"out of memory: {parameters:,} parameters with gradients and optimizer state need "
            f"{needed / 2**30:.1f} GiB; {where} has {available / 2**30:.1f} GiB free, room for "
            f"{available // each:,} parameters; make {setting} smaller, or use a smaller precision"
        )


def as_user_error(error: BaseException, resolved: Resolved, advice: str) -> UserError:
    """An allocation that a framework could not make, in one sentence: what was asked for and what there is.

    `advice`: what needs less.
    """
    import psutil

    asked = " ".join(str(error).split())[:300] or type(error).__name__
    free = psutil.virtual_memory().available
    where = f"this machine has {free / 2**30:.1f} GiB free"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        where += f", of which this process may use {limit / 2**30:.1f} GiB in all (ulimit -v)"
    if resolved.place.kind == "gpu":
        where = f"{resolved.place} has {gpus()[resolved.place.index].memory_bytes / 2**30:.1f} GiB"
    return UserError(f"out of memory: {where}; asked for: {asked}; {advice}")
