"""Slices of A and B in shared memory, for four warps: tiled.cu."""

from __future__ import annotations

from pipeline.kernels.cuda.function import COMMON
from pipeline.kernels.cuda.source import CudaSource
from pipeline.spec import spec


@spec
class Tiled(CudaSource):
    """64×64 of D for each block; what its warps fetch they share."""

    dtypes = ("fp16", "bf16", "tf32")
    launches = "64×64 of D a block, 4 warps, 32 of K at a time in shared memory"
    sources = ("tiled.cu", "slices.cuh", COMMON)
    rung = 2
    entry = "gemm_tiled"
    block = (128, 1, 1)
    tile = (64, 64)
    architectures = {"fp16": 75, "bf16": 80, "tf32": 80}  # noqa: RUF012
    minimum = (7, 5)
    registers = 160
