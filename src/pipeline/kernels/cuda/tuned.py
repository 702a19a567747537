"""Copies, loads and matmuls at the same time, 64×64 of D for each warp: tuned.cu."""

from __future__ import annotations

from pipeline.kernels.cuda.function import COMMON
from pipeline.kernels.cuda.source import CudaSource
from pipeline.machine.architecture import block_shared
from pipeline.spec import spec

DEEP, SHALLOW = 64, 32  # of K in a stage


@spec
class Tuned(CudaSource):
    """128×256 of D for each block; three stages of asynchronous copies.

    In fp16 a stage is 64 of K, where a block may have the shared memory for it; bf16 would spill registers.
    """

    dtypes = ("fp16", "bf16")
    launches = "128×256 of D a block, 8 warps of 64×64, 3 stages of 64 or 32 of K by cp.async"
    sources = ("tuned.cu", "slices.cuh", "place.cuh", COMMON)
    rung = 3
    entry = "gemm_tuned"
    block = (256, 1, 1)
    tile = (128, 256)
    one_row = True
    architectures = {"fp16": 80, "bf16": 80}  # noqa: RUF012
    minimum = (8, 0)
    promised = ("LDGSTS",)
    registers = 255

    def defines(self, dtype: str, architecture: int | None = None) -> tuple[str, ...]:
        return *super().defines(dtype, architecture), f"SLICE_K={_slice(dtype, architecture)}"

    def shared(self, dtype: str, architecture: int | None = None) -> int:
        return _stages(self.tile, _slice(dtype, architecture))


def _slice(dtype: str, architecture: int | None) -> int:
    """Of K in a stage. `architecture`: as 80 for 8.0; None: the CPU."""
    if dtype != "fp16":
        return SHALLOW
    room = None if architecture is None else block_shared(architecture) or 0
    return DEEP if room is None or room >= _stages(Tuned.tile, DEEP) else SHALLOW


def _stages(tile: tuple[int, int], depth: int) -> int:
    """Bytes of three stages, whose columns are padded by 16 bytes."""
    rows, columns = tile
    pad, size = 8, 2
    return 3 * size * (depth * (rows + pad) + columns * (depth + pad))
