"""TensorFlow's arrays on one device, as `pipeline.backends.shared.arrays` wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.backends.shared import arrays


class Arrays(arrays.Arrays):
    """TensorFlow's, on one device."""

    def __init__(self, place: str) -> None:
        self.on = "/CPU:0" if place == "cpu" else f"/{place.upper()}"
        self.waits = not place.startswith("cpu")

    def put(self, array: np.ndarray, dtype: str | None = None) -> tf.Tensor:
        if dtype is not None:
            array = array.astype(tf.as_dtype(dtype).as_numpy_dtype, copy=not self.waits)  # a GPU has its own memory
        with tf.device(self.on):
            return tf.identity(tf.convert_to_tensor(array))

    def wait(self, arrays: Sequence[Any]) -> None:
        """On a CPU an operation is done when its call returns."""
        if self.waits:
            tf.test.experimental.sync_devices()

    def ready(self, arrays: Sequence[Any]) -> bool:
        """TensorFlow cannot be asked."""
        return True

    def dtype(self, array: Any) -> str:
        return str(array.dtype.name)

    def device(self, array: Any) -> str:
        name = str(array.device).rpartition("device:")[2].lower()
        return "cpu" if name == "cpu:0" else name
