"""What multiplies matrices in one framework on one device: what stage=matmul asks of each.

A framework's module offers `matrices(place, limit)`, for products on one device of whose memory it takes at most
`limit` bytes, and `apart(place, limit)`: the same for two devices, or why there are not two.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from pipeline.backends.shared.arrays import Arrays
from pipeline.machine.memory import process_bytes, process_peak_bytes


class Memory(NamedTuple):
    """Bytes in use, and the most that were: of a GPU by the framework's allocator, else of the process in RAM."""

    now: int
    peak: int


class Matrices(Arrays, Protocol):
    """A framework's matrices on one device."""

    def refusal(self, dtype: str) -> str | None:
        """Why it has no product of matrices of a dtype ("has no bfloat16"); None where it has."""
        return None

    def product(self, a: Any, b: Any) -> Any:
        """a·b as the framework writes it; it need not be computed when this returns."""
        return a @ b

    def numbers(self, array: Any) -> np.ndarray:
        """In NumPy's float64; waits until it is computed."""
        return self.get(array).astype(np.float64)

    def moved(self, array: Any) -> Any:
        """A copy on this device of an array that lies on another one."""
        ...

    def memory(self) -> Memory:
        """Of the device, or of this process."""
        ...


def of_process() -> Memory:
    """What a framework on the CPU has in use, with all else in its process."""
    return Memory(process_bytes(), process_peak_bytes())
