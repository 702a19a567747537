"""Triton by tensor descriptors, persistent: programs/descriptors.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from pipeline.kernels.triton.source import TritonSource
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.kernels.gemm import Gemm

BYTES = 16  # the leading dimensions of what TMA copies are multiples of it


@spec
class TritonTma(TritonSource):
    """Settings: TritonSource."""

    dtypes: ClassVar[tuple[str, ...]] = ("fp16", "bf16")
    launches: ClassVar[str] = "a program for each multiprocessor, TMA"
    minimum: ClassVar[tuple[int, int] | None] = (9, 0)
    module: ClassVar[str] = "descriptors"
    copies: ClassVar[str | None] = "UTMALDG"

    block: tuple[int, int, int] | None = None
    warps: int = Field(default=8, ge=1, le=32)
    stages: int = Field(default=3, ge=1, le=8)

    def refusal(self, gemm: Gemm) -> str | None:
        unit = BYTES // gemm.type.size
        if gemm.dtype in self.dtypes and (gemm.lda % unit or gemm.ldb % unit):
            return (
                f"takes leading dimensions of A and B that are multiples of {unit} ({BYTES} bytes), not "
                f"{gemm.lda} and {gemm.ldb}"
            )
        return super().refusal(gemm)

    def grid(self, gemm: Gemm, processors: int) -> int:
        return min(processors, super().grid(gemm, processors))
