"""One warp for each 16×16 tile of D: naive.cu."""

from __future__ import annotations

from pipeline.kernels.cuda.function import COMMON
from pipeline.kernels.cuda.source import CudaSource
from pipeline.spec import spec


@spec
class Naive(CudaSource):
    """The first program for Tensor Cores, with bounds checks, leading dimensions, alpha and beta."""

    dtypes = ("fp16", "bf16", "tf32", "int8")
    launches = "one warp for each 16×16 tile, 16 warps a block"
    sources = ("naive.cu", COMMON)
    rung = 1
    entry = "gemm_naive"
    block = (128, 4, 1)
    tile = (64, 64)
    architectures = {"fp16": 75, "int8": 75, "bf16": 80, "tf32": 80}  # noqa: RUF012
    minimum = (7, 5)
    registers = 64
    spare = {  # noqa: RUF012
        "row >= M": "a warp below D would load zeros and store nothing: the check saves its work",
        "column >= N": "and this one that of a warp to the right of D",
    }
    spilled = 8  # a word once stored and once loaded, on sm_100 with tf32
