"""A grid-stride loop over the elements of D, without Tensor Cores: grid_stride.cu."""

from __future__ import annotations

import math

from pydantic import Field

from pipeline.kernels.cuda.function import COMMON, Triple
from pipeline.kernels.cuda.source import FEW, CudaSource
from pipeline.kernels.gemm import Gemm
from pipeline.spec import spec


@spec
class GridStride(CudaSource):
    """Each thread computes `work` elements of D, which lie a grid apart."""

    dtypes = ("fp32", "fp16", "bf16", "int8")
    launches = "256 threads a block, each as many elements of D as `work` says"
    sources = ("grid_stride.cu", COMMON)
    entry = "gemm_grid_stride"
    block = (256, 1, 1)
    architectures = {"fp32": 75, "fp16": 75, "int8": 75, "bf16": 80}  # noqa: RUF012
    tensor_core = {}  # noqa: RUF012
    minimum = (7, 5)
    registers = 64

    work: int = Field(default=1, ge=1, le=1 << 20, description="elements of D for each thread")

    @property
    def name(self) -> str:
        """With its work, so that several can stand beside each other."""
        return "grid_stride" if self.work == 1 else f"grid_stride_{self.work}"

    def grid(self, gemm: Gemm, multiprocessors: int = FEW) -> Triple:
        return math.ceil(gemm.m * gemm.n / (256 * self.work)), 1, 1
