"""How much memory a training had, in whichever framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.backends.memory import process_peak_bytes

if TYPE_CHECKING:
    from pipeline.device import Place


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
