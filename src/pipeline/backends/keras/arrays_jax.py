"""JAX's arrays on one device, as `pipeline.backends.shared.arrays` wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pipeline.backends.shared import arrays


class Arrays(arrays.Arrays):
    """JAX's, on one device."""

    def __init__(self, place: str) -> None:
        kind, _, index = place.partition(":")
        self.on = jax.devices(kind)[int(index or 0)]

    def put(self, array: np.ndarray, dtype: str | None = None) -> jax.Array:
        copied = self.on.platform == "cpu"  # elsewhere the device has its own memory
        wanted = array.dtype if dtype is None else jax.numpy.dtype(dtype)
        return jax.device_put(array.astype(wanted, copy=copied), self.on)

    def wait(self, arrays: Sequence[Any]) -> None:
        jax.block_until_ready(arrays)

    def ready(self, arrays: Sequence[Any]) -> bool:
        """Keras gives losses as numbers, which are there."""
        return all(each.is_ready() for each in arrays if hasattr(each, "is_ready"))

    def device(self, array: jax.Array) -> str:
        (device,) = array.devices()
        name = f"{device.platform}:{device.id}"
        return "cpu" if name == "cpu:0" else name
