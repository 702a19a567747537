"""Blocks that stay, 128×256 of D at a time by two warpgroups: wgmma_persistent.cu."""

from __future__ import annotations

from pipeline.kernels.cuda.function import Triple
from pipeline.kernels.cuda.source import FEW
from pipeline.kernels.cuda.tma import SHARED_BY_ALL, OnHopper, shared_memory
from pipeline.kernels.gemm import Gemm
from pipeline.spec import spec


@spec
class WgmmaPersistent(OnHopper):
    """One block for each multiprocessor, which computes one tile of D after the other."""

    launches = "a block for each multiprocessor, 128×256 of D at a time, 4 warps fetch by TMA, 8 multiply by wgmma"
    sources = ("wgmma_persistent.cu", *SHARED_BY_ALL)
    rung = 5
    entry = "gemm_wgmma_persistent"
    block = (384, 1, 1)
    tile = (128, 256)
    dynamic = shared_memory(tile, stages=4)
    promised = ("UTMALDG", "USETMAXREG")
    registers = 168  # at the start, no more and no fewer; 40 and 232 after setmaxnreg

    def grid(self, gemm: Gemm, multiprocessors: int = FEW) -> Triple:
        """No more blocks than multiprocessors."""
        return min(super().grid(gemm)[0], multiprocessors), 1, 1
