"""What a framework's arrays on one device have to offer, for whoever compares frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Arrays(Protocol):
    """A framework's arrays on one device."""

    def put(self, array: np.ndarray, dtype: str | None = None) -> Any:
        """A copy of it on the device, in `dtype` (None: in its own)."""
        ...

    def get(self, array: Any) -> np.ndarray:
        """In NumPy, in its own dtype; waits until it is computed."""
        return np.asarray(array)

    def wait(self, arrays: Sequence[Any]) -> None:
        """Return once all are computed."""
        ...

    def ready(self, arrays: Sequence[Any]) -> bool:
        """Whether all are computed, as far as the framework says; without waiting."""
        ...

    def dtype(self, array: Any) -> str:
        """Its dtype, by its name in NumPy: `float32`."""
        return str(array.dtype)

    def device(self, array: Any) -> str:
        """Where it lies: `cpu`, `cpu:1`, `gpu:0`."""
        ...
