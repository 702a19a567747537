"""The operands as a card has them: copied with their margins, so that what is written beside them is seen there too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.kernels.gemm import MARGIN_STEP, with_margins

Array = TypeVar("Array", bound=Any)  # NumPy's, or a framework's

if TYPE_CHECKING:
    import numpy as np

    from pipeline.kernels.gemm import Operands


@dataclass
class Copy:
    """A matrix on a card. `whole`: its buffer with the margins. `begin`, `length`: where in that it lies, in numbers.
    `memory`: the address of the whole on the card.
    """

    whole: np.ndarray
    begin: int
    length: int
    memory: int = 0

    @staticmethod
    def of(buffer: np.ndarray) -> Copy:
        """Of a buffer that is not on the card yet."""
        whole = with_margins(buffer)
        begin = (buffer.ctypes.data - whole.ctypes.data) // whole.itemsize
        assert begin % MARGIN_STEP == 0, "behind its margin a matrix has to be aligned as at the beginning of memory"
        return Copy(whole, begin, buffer.size)

    @property
    def address(self) -> int:
        """Of the matrix on the card."""
        return self.memory + self.begin * self.whole.itemsize

    def inner(self, whole: Array) -> Array:
        """The matrix in a copy of the whole."""
        found: Array = whole[self.begin : self.begin + self.length]
        return found


def copies(operands: Operands) -> dict[str, Copy]:
    """By the names of a kernel's arguments; D is a poisoned buffer of the launch's."""
    buffers = {"A": operands.a, "B": operands.b, "C": operands.c, "D": operands.room()}
    return {name: Copy.of(buffer) for name, buffer in buffers.items()}
