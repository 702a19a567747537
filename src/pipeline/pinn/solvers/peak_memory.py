"""How much memory a training had, in whichever framework, and what is free before one of our solvers begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.machine.free_memory import free_bytes
from pipeline.machine.memory import process_peak_bytes

if TYPE_CHECKING:
    from pipeline.machine.device import Place


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
    return free_bytes()
