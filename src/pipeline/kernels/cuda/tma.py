"""What the kernels have in common that fetch A and B by TMA and multiply by wgmma: sm_90a alone (ring.cuh)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.kernels.cuda.function import COMMON
from pipeline.kernels.cuda.source import CudaSource

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
    one_row = True
    tensor_core = {"fp16": "HGMMA", "bf16": "HGMMA"}  # noqa: RUF012

    def arguments(self, operands: Operands) -> Sequence[Argument]:
        from pipeline.kernels.shim.program import Array, Boxes

        plain = super().arguments(operands)
        a, b = plain[:2]
        assert isinstance(a, Array) and isinstance(b, Array)
        return (*plain, Boxes(a, LINE, BLOCK_K), Boxes(b, BLOCK_K, self.tile[1]))


def shared_memory(tile: tuple[int, int], stages: int) -> int:
    """Bytes of `Ring`: a slice of A and one of B for each stage, and two barriers."""
    return stages * (2 * BLOCK_K * sum(tile) + 2 * 8)
