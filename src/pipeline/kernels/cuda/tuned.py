"""Copies and products at the same time, 64×64 of D for each warp: tuned.cu."""

from __future__ import annotations

import math

from pipeline.kernels.cuda.function import COMMON, Triple
from pipeline.kernels.cuda.source import FEW, CudaSource
from pipeline.kernels.gemm import Gemm
from pipeline.spec import spec


@spec
class Tuned(CudaSource):
    """128×256 of D for each block; three stages of asynchronous copies."""

    dtypes = ("fp16", "bf16")
    launches = "128×256 of D a block, 8 warps of 64×64, 3 stages of 32 of K by cp.async"
    sources = ("tuned.cu", "slices.cuh", "place.cuh", COMMON)
    rung = 3
    entry = "gemm_tuned"
    block = (256, 1, 1)
    tile = (128, 256)
    dynamic = 3 * 2 * (32 * (128 + 8) + 256 * (32 + 8)) + 8 * 1024  # three stages, and scratch memory for each warp
    architectures = {"fp16": 80, "bf16": 80}  # noqa: RUF012
    minimum = (8, 0)
    promised = ("LDGSTS",)
    registers = 255
    spare = {  # noqa: RUF012
        "slice + AHEAD < slices": "past the end of K the copies would be zeros, which nobody reads",
    }

    def grid(self, gemm: Gemm, multiprocessors: int = FEW) -> Triple:
        """One row of blocks: the kernel numbers them itself."""
        return math.ceil(gemm.m / self.tile[0]) * math.ceil(gemm.n / self.tile[1]), 1, 1
