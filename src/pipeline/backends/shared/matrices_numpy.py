"""Products of matrices in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.backends.shared import arrays_numpy
from pipeline.backends.shared import matrices as shared
from pipeline.backends.shared.matrices import Memory, of_process


class Matrices(arrays_numpy.Arrays, shared.Matrices):
    """numpy.matmul: BLAS for float32 and float64, plain loops for float16."""

    def refusal(self, dtype: str) -> str | None:
        return "has no bfloat16" if dtype == "bfloat16" else None

    def moved(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def memory(self) -> Memory:
        return of_process()


def matrices(place: str, limit: int | None) -> Matrices:
    """On the CPU, whatever is asked for."""
    return Matrices()


def apart(place: str, limit: int | None) -> tuple[Any, Any] | str:
    """NumPy has no second device: the reason, whatever is asked for."""
    return "NumPy knows one device"
