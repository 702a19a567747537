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
    registers = 200  # so that two blocks fit on a multiprocessor
