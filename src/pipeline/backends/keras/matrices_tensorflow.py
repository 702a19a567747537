"""Products of matrices in TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from pipeline.backends.keras import arrays_tensorflow
from pipeline.backends.shared import matrices as shared
from pipeline.backends.shared.matrices import Memory, of_process
from pipeline.machine import tensorflow_devices


class Matrices(arrays_tensorflow.Arrays, shared.Matrices):
    """`a @ b`, operation by operation; float32 in float32 on a GPU too."""

    def moved(self, array: tf.Tensor) -> tf.Tensor:
        with tf.device(self.on):
            return tf.identity(array)

    def memory(self) -> Memory:
        if not self.waits:
            return of_process()
        found: dict[str, Any] = tf.config.experimental.get_memory_info(self.on.strip("/"))
        return Memory(int(found["current"]), int(found["peak"]))


def matrices(place: str, limit: int | None) -> Matrices:
    """Products on `place`: `cpu` or `gpu:0`. `limit`: bytes of GPU memory (None: all)."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tensorflow_devices.grow_as_needed(tf)
    if limit is not None:
        _split("GPU", int(place.partition(":")[2]), [tf.config.LogicalDeviceConfiguration(memory_limit=limit / 2**20)])
    return Matrices(place)


def apart(place: str, limit: int | None) -> tuple[Matrices, Matrices] | str:
    """Two logical devices of the CPU, or a GPU and the CPU."""
    if place != "cpu":
        return matrices(place, limit), Matrices("cpu")
    _split("CPU", 0, [tf.config.LogicalDeviceConfiguration()] * 2)
    return matrices("cpu", None), Matrices("cpu:1")


def _split(kind: str, index: int, each: list[Any]) -> None:
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices(kind)[index], each)
