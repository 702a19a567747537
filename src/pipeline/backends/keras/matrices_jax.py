"""Products of matrices in JAX."""

from __future__ import annotations

import os
from typing import Any

import jax

from pipeline.backends.keras import arrays_jax
from pipeline.backends.shared import matrices as shared
from pipeline.backends.shared.matrices import Memory, of_process
from pipeline.machine.device import gpus

# https://docs.jax.dev/en/latest/gpu_memory_allocation.html; JAX does not start with both names of one thing.
FRACTION, OLDER = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
GROWS = "XLA_PYTHON_CLIENT_PREALLOCATE"


class Matrices(arrays_jax.Arrays, shared.Matrices):
    """`a @ b`, operation by operation; float32 in float32 on a GPU too."""

    def moved(self, array: jax.Array) -> jax.Array:
        return jax.device_put(array, self.on)

    def memory(self) -> Memory:
        if self.on.platform == "cpu":
            return of_process()
        stats: dict[str, Any] = self.on.memory_stats()
        return Memory(int(stats["bytes_in_use"]), int(stats["peak_bytes_in_use"]))


def matrices(place: str, limit: int | None) -> Matrices:
    """On `cpu` or `gpu:0`. JAX reads its environment when it starts its devices, which it has not done yet."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    if limit is not None:
        os.environ.pop(OLDER, None)
        os.environ[FRACTION] = repr(min(1.0, limit / gpus()[int(place.partition(":")[2] or 0)].memory_bytes))
    os.environ.setdefault(GROWS, "false" if limit is None else "true")
    return Matrices(place)


def apart(place: str, limit: int | None) -> tuple[Matrices, Matrices] | str:
    """Two devices of the CPU, or a GPU and the CPU."""
    if place != "cpu":
        return matrices(place, limit), Matrices("cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    return matrices("cpu", None), Matrices("cpu:1")
