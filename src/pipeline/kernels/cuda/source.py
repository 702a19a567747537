"""What every kernel in CUDA C++ has in common: its file, its launch, and how it runs on a CPU or a GPU."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.kernels.cuda.function import CudaFunction, Triple
from pipeline.kernels.cuda.limits import LARGEST, refused_grid

if TYPE_CHECKING:
    from pipeline.kernels.gemm import Gemm, Operands
    from pipeline.kernels.shim.program import Argument, Program

ALIGNMENT = 256  # bytes; of cuMemAlloc
FEW = 2  # multiprocessors of the card that the shim stands for: blocks that stay get several tiles each


class CudaSource(CudaFunction, Kernel):
    """A kernel of this folder, which takes columns; rows are the same problem turned.

    `tile`: rows and columns of D that a block computes. `one_row`: blocks lie in one row, and number their tiles.
    `spare`: checks in its source without which D is the same, and why they are there.
    """

    processor = "gpu"
    tile: tuple[int, int]
    one_row: ClassVar[bool] = False
    spare: ClassVar[Mapping[str, str]] = {}

    def refusal(self, gemm: Gemm) -> str | None:
        """Also of what CUDA's grids and 32-bit arguments have no room for."""
        refused = super().refusal(gemm)
        if refused is None and max(gemm.m, gemm.n, gemm.k, gemm.lda, gemm.ldb, gemm.ldc) > LARGEST:
            return f"takes sizes and leading dimensions up to {LARGEST:,}"
        return refused or refused_grid(self.grid(gemm if gemm.order == "column" else gemm.turned))

    def grid(self, gemm: Gemm, multiprocessors: int = FEW) -> Triple:
        """Blocks for a problem by columns, on a card with so many multiprocessors."""
        down, across = math.ceil(gemm.m / self.tile[0]), math.ceil(gemm.n / self.tile[1])
        return (down * across, 1, 1) if self.one_row else (down, across, 1)

    def arguments(self, operands: Operands) -> Sequence[Argument]:
        """What the kernel is called with, for a problem by columns; D is the fourth."""
        from pipeline.kernels.shim.program import Array

        gemm = operands.gemm
        number = np.dtype(gemm.type.out).type
        return (
            Array("A", operands.a, gemm.m, gemm.k, gemm.lda),
            Array("B", operands.b, gemm.k, gemm.n, gemm.ldb),
            Array("C", operands.c, gemm.m, gemm.n, gemm.ldc),
            Array("D", placed(operands.d), gemm.m, gemm.n, gemm.ldc, writable=True),
            *(np.int32(size) for size in (gemm.m, gemm.n, gemm.k, gemm.lda, gemm.ldb, gemm.ldc)),
            number(gemm.alpha),
            number(gemm.beta),
        )

    def missing(self) -> str | None:
        """What this machine lacks: a GPU that is new enough, or the packages that compile for it."""
        from pipeline.kernels.cuda.driver import missing
        from pipeline.kernels.shim.program import available

        lacking = missing(self)
        if lacking is None or available():
            return lacking
        named = os.environ.get("CXX")
        unsuited = f", and CXX={named} is none" if named else ""
        return f"{lacking} (to verify it without one: g++ 10 or newer{unsuited})"

    def prepare(self, operands: Operands, threads: int) -> Launch:
        """Compiled for the GPU that is chosen, the operands in its memory."""
        from pipeline.kernels.cuda.driver import OnGpu

        return OnGpu(self, by_columns(operands), turned=operands.gemm.order == "row")

    def rehearses(self, dtype: str) -> bool:
        from pipeline.kernels.shim.program import available

        return available()

    def rehearse(self, operands: Operands, seed: int = 0) -> Launch | None:
        """On the CPU, all accesses to memory checked; none without g++."""
        if not self.rehearses(operands.gemm.dtype):
            return None
        return Rehearsal(self, by_columns(operands), self.program(operands.gemm.dtype), seed)


def by_columns(operands: Operands) -> Operands:
    """The same buffers as a problem by columns."""
    return operands if operands.gemm.order == "column" else operands.turned


def placed(buffer: np.ndarray, offset: int = 0) -> np.ndarray:
    """A copy whose address is a multiple of 256 bytes, as that of a card's memory is, or `offset` bytes more."""
    memory = np.empty(buffer.nbytes + ALIGNMENT + offset, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT + offset
    copy = memory[begin : begin + buffer.nbytes].view(buffer.dtype)
    copy[:] = buffer
    return copy


class Rehearsal(Launch):
    """A kernel executed by the shim."""

    def __init__(self, kernel: CudaSource, operands: Operands, program: Program, seed: int) -> None:
        self.facts: Mapping[str, object] = {"runs on": "the CPU, thread by thread", **program.library.facts}
        self._kernel, self._program, self._seed = kernel, program, seed
        a, b, c = map(placed, (operands.a, operands.b, operands.c))
        self._operands = replace(operands, a=a, b=b, c=c)
        self._arguments = kernel.arguments(self._operands)

    def run(self) -> None:
        kernel, gemm = self._kernel, self._operands.gemm
        self._arguments = kernel.arguments(self._operands)
        self._program.launch(kernel.grid(gemm), kernel.block, self._arguments, seed=self._seed)

    def result(self) -> np.ndarray:
        return np.asarray(getattr(self._arguments[3], "buffer"))  # noqa: B009
