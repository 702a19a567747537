"""NumPy's arrays, as `pipeline.backends.shared.arrays` wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Arrays:
    """NumPy's, which are computed when a call returns."""

    def put(self, array: np.ndarray, dtype: str | None = None) -> np.ndarray:
        return array.astype(array.dtype if dtype is None else dtype)

    def get(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def wait(self, arrays: Sequence[Any]) -> None:
        """Nothing is ever under way."""

    def ready(self, arrays: Sequence[Any]) -> bool:
        return True

    def dtype(self, array: Any) -> str:
        return str(array.dtype)

    def device(self, array: Any) -> str:
        return "cpu"
