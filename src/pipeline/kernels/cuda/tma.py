"""What the kernels have in common that fetch A and B by TMA and multiply by wgmma: sm_90a alone (ring.cuh)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.kernels.cuda.function import COMMON, Triple
from pipeline.kernels.cuda.source import FEW, CudaSource
from pipeline.kernels.gemm import Gemm

if TYPE_CHECKING:
    from pipeline.kernels.gemm import Operands
    from pipeline.kernels.shim.program import Argument

SHARED_BY_ALL = ("ring.cuh", "hopper.cuh", "place.cuh", COMMON)
LINE, BLOCK_K = 64, 64  # of ring.cuh: rows of a box of A, and of K in a slice


class OnHopper(CudaSource):
    """Its last two arguments are tensor maps of A and of B."""

    dtypes = ("fp16", "bf16")
    architectures = {"fp16": 90, "bf16": 90}  # noqa: RUF012
    minimum = (9, 0)
    specific = True
    tensor_core = {"fp16": "HGMMA", "bf16": "HGMMA"}  # noqa: RUF012

    def grid(self, gemm: Gemm, multiprocessors: int = FEW) -> Triple:
        """One row of blocks, one for each tile: the kernel numbers them itself."""
        return math.ceil(gemm.m / self.tile[0]) * math.ceil(gemm.n / self.tile[1]), 1, 1

    def arguments(self, operands: Operands) -> Sequence[Argument]:
        from pipeline.kernels.shim.program import Array, Boxes

        plain = super().arguments(operands)
        a, b = plain[:2]
        assert isinstance(a, Array) and isinstance(b, Array)
        return (*plain, Boxes(a, LINE, BLOCK_K), Boxes(b, BLOCK_K, self.tile[1]))


def shared_memory(tile: tuple[int, int], stages: int) -> int:
    """Bytes of `Ring`: a slice of A and one of B for each stage, and two barriers."""
    return stages * (2 * BLOCK_K * sum(tile) + 2 * 8)
