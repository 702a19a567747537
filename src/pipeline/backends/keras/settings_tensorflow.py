"""TensorFlow's process-wide settings as a run needs them, and what its devices are and hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import tensorflow as tf
from tensorflow.python.eager import context as eager

from pipeline.machine import tensorflow_devices
from pipeline.machine.capability import Resolved
from pipeline.machine.found import check_tensorflow
from pipeline.machine.precision import Format

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@contextlib.contextmanager
def runtime_settings(experiment: Experiment, resolved: Resolved, form: Format) -> Iterator[None]:
    """TensorFlow's process-wide settings as this run needs them, put back where TensorFlow lets them be."""
    check_tensorflow(tf, resolved.place)
    _configure_devices(experiment, resolved)
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(form.tf32)
    try:
        with tf.device(resolved.place.tensorflow), _random_state():
            yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


@contextlib.contextmanager
def _random_state() -> Iterator[None]:
    """Put back what tf.random.set_seed sets; nothing public reads it."""
    process = eager.context()
    seed, generator = process._seed, getattr(process, "_rng", None)  # no seed, no generator
    try:
        yield
    finally:
        process._seed, process._rng = seed, generator


def _configure_devices(experiment: Experiment, resolved: Resolved) -> None:
    """Threads, memory bounds and logical devices: fixed for the process once TensorFlow has started its devices."""
    device = experiment.device
    with contextlib.suppress(RuntimeError):  # already started: an earlier call has set them
        if experiment.backend.threads:
            tf.config.threading.set_intra_op_parallelism_threads(experiment.backend.threads)
        kind = resolved.place.kind.upper()
        physical = tf.config.list_physical_devices(kind)[resolved.place.index]
        limit = device.memory_limit_bytes
        if kind == "GPU":
            tensorflow_devices.grow_as_needed(tf)
        if limit is not None or device.logical_devices > 1:
            each = tf.config.LogicalDeviceConfiguration(memory_limit=None if limit is None else limit / 2**20)
            tf.config.set_logical_device_configuration(physical, [each] * device.logical_devices)


def logical_devices() -> list[str]:
    """Names of the logical devices of this process."""
    return [device.name for device in tf.config.list_logical_devices()]


def cpu_threads() -> int | None:
    """CPU threads of one operation; None where TensorFlow chooses."""
    return tf.config.threading.get_intra_op_parallelism_threads() or None


def gpu_free_bytes(index: int, limit: int | None) -> int:
    """Memory of a GPU that TensorFlow's allocator may still give out."""
    from pipeline.machine import device

    given_out = int(tf.config.experimental.get_memory_info(f"GPU:{index}")["current"])
    total = device.gpus()[index].memory_bytes
    return tensorflow_devices.free_bytes(device.gpu_free_bytes(index), total, limit, given_out)


def gpu_peak_bytes(index: int) -> int:
    """Most that TensorFlow's allocator has given out."""
    return int(tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"])
