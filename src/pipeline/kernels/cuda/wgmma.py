"""Warps that fetch by TMA and warps that multiply by wgmma: wgmma.cu."""

from __future__ import annotations

from pipeline.kernels.cuda.tma import SHARED_BY_ALL, OnHopper, shared_memory
from pipeline.spec import spec


@spec
class Wgmma(OnHopper):
    """128×128 of D for each block; a ring of three stages between its warps."""

    launches = "128×128 of D a block, 1 warp fetches by TMA, 4 multiply by wgmma, 3 stages of 64 of K"
    sources = ("wgmma.cu", *SHARED_BY_ALL)
    rung = 4
    entry = "gemm_wgmma"
    block = (160, 1, 1)
    tile = (128, 128)
    dynamic = shared_memory(tile, stages=3)
    promised = ("UTMALDG",)
    # Two blocks are 10 warps, so that one of a multiprocessor's four partitions has three: 16,384 registers for 3·32
    # threads, in eights.
    registers = 168
