"""NumPy's arrays, as `pipeline.backends.shared.arrays` wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.backends.shared import arrays


class Arrays(arrays.Arrays):
    """NumPy's, which are computed when a call returns."""

    def put(self, array: np.ndarray, dtype: str | None = None) -> np.ndarray:
        return array.astype(array.dtype if dtype is None else dtype)

    def wait(self, arrays: Sequence[Any]) -> None:
        """Nothing is ever under way."""

    def ready(self, arrays: Sequence[Any]) -> bool:
        return True

    def device(self, array: Any) -> str:
        return "cpu"
