"""TensorFlow's ceilings on a device, operation by operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow as tf

from pipeline.backends.keras.arrays_tensorflow import Arrays
from pipeline.backends.shared.ceiling_bench import Bench, Call, Operations
from pipeline.machine import energy
from pipeline.machine.ceilings import Ceiling


class TensorFlow(Arrays, Operations):
    """On `cpu` or `gpu:0`."""

    name: ClassVar[str] = "tensorflow"

    def cast(self, array: Any, dtype: str) -> Any:
        with tf.device(self.on):
            return tf.cast(array, dtype)

    def product(self, a: Any, b: Any) -> Call:
        return lambda: tf.linalg.matmul(a, b)

    def add(self, a: Any, b: Any) -> Call:
        return lambda: tf.add(a, b)

    def convolution(self, x: Any, w: Any) -> Call:
        return lambda: tf.nn.conv2d(x, w, strides=1, padding="SAME")


def measured(place: str, rounds: int) -> Iterator[list[Ceiling]]:
    """Everything in the dtype that it says: without TF32."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    operations = TensorFlow(place)
    with tf.device(operations.on):
        yield from Bench(operations, place, energy.meter(place)).measured(rounds)
