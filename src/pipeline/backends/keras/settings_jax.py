"""JAX's process-wide settings as a run needs them, and what its devices are and hold."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
from keras.src.backend.common import dtypes

from pipeline.errors import RunError
from pipeline.machine.capability import Resolved
from pipeline.machine.device import gpus
from pipeline.machine.found import jax_device
from pipeline.machine.precision import Format

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # JAX's newer and older name of one thing


@contextlib.contextmanager
def runtime_settings(experiment: Experiment, resolved: Resolved, form: Format) -> Iterator[None]:
    """JAX's process-wide settings as this run needs them, put back afterwards.

    JAX multiplies float32 in TF32 on a GPU unless set otherwise, and makes float64 float32 unless x64 is on.
    """
    with contextlib.suppress(RuntimeError):  # already started: an earlier call has set them
        device = experiment.device
        if (count := max(device.logical_devices, device.processes * device.split)) > 1:
            jax.config.update("jax_num_cpu_devices", count)
            # Steps that are under way together would each hold a core and wait for the other's exchange, for ever.
            jax.config.update("jax_cpu_enable_async_dispatch", False)
    wide = "float64" in (form.parameters, *experiment.data_model.layer_dtypes)
    with (
        jax.enable_x64(wide),
        jax.default_matmul_precision("tensorfloat32" if form.tf32 else "highest"),
        jax.default_device(_device(resolved, experiment.device.memory_limit_bytes)),
        _float64_kept(wide),
    ):
        yield


def _device(resolved: Resolved, limit: int | None) -> Any:
    """The run's device, at most `limit` bytes of whose memory JAX takes.

    Raises RunError where it took more before, and Impossible where it finds no such GPU.
    """
    place = resolved.place
    if limit is None:
        return jax_device(jax, place)
    with _memory_fraction(limit, gpus()[place.index].memory_bytes):
        device = jax_device(jax, place)
    taken = device.memory_stats()["bytes_limit"]
    if taken > limit:
        raise RunError(f"device.memory_limit: {limit} bytes asked for, but JAX already holds {taken} of {place} here")
    return device


@contextlib.contextmanager
def _memory_fraction(limit: int, total: int) -> Iterator[None]:
    """Have JAX take `limit` of a GPU's `total` bytes if it starts in here: it reads its environment then and only then.

    `total` is the driver's figure; the share is of the little less that CUDA has of it, so the bound holds.
    """
    before = {name: os.environ.pop(name) for name in FRACTIONS if name in os.environ}
    os.environ[FRACTIONS[0]] = repr(min(1.0, limit / total))
    try:
        yield
    finally:
        del os.environ[FRACTIONS[0]]
        os.environ.update(before)


@contextlib.contextmanager
def _float64_kept(wide: bool) -> Iterator[None]:
    """Stop Keras from computing in float32 what JAX has in float64.

    Keras's rules of promotion end in a table that makes float64 float32 on JAX, x64 or not: ops.mean, ops.tanh and more
    would lose half the digits of an fp64 run, without a word.
    """
    table = dtypes.BIT64_TO_BIT32_DTYPE
    before = table["float64"]
    table["float64"] = "float64" if wide else before
    try:
        yield
    finally:
        table["float64"] = before


def logical_devices() -> list[str]:
    """Names of the devices of this process."""
    return [str(device) for device in jax.devices()]


def cpu_threads() -> None:
    """CPU threads of one operation: XLA chooses, and does not tell."""


def gpu_free_bytes(index: int, limit: int | None) -> int:
    """Memory of a GPU that JAX's allocator may still give out; the limit is in its own bound already."""
    stats = jax.devices("cuda")[index].memory_stats()
    return int(stats["bytes_limit"] - stats["bytes_in_use"])


def gpu_peak_bytes(index: int) -> int:
    """Most that JAX's allocator has given out."""
    return int(jax.devices("cuda")[index].memory_stats()["peak_bytes_in_use"])
