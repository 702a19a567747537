"""What the programs share: in which order tiles of D are computed, and how one is written."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_place(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of D at which a tile begins.

    GROUP rows of tiles are computed together, column by column: what runs at the same time reads the same parts of A
    and B, which stay in the L2 cache.
    """
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tile // (GROUP * across)
    in_group = tile % (GROUP * across)
    height = min(GROUP, down - group * GROUP)  # the last group may have fewer rows of tiles
    return (group * GROUP + in_group % height) * BLOCK_M, in_group // height * BLOCK_N


@triton.jit
def store_tile(
    sums,
    C,
    D,
    row,
    column,
    M,
    N,
    ldc,
    alpha,
    beta,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    READS_C: tl.constexpr,
):
    """alpha·sums + beta·C to the part of a tile that lies in D. With beta = 0 C is not read: it may hold NaN."""
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    places = rows[:, None].to(tl.int64) * ldc + columns[None, :]
    values = alpha * sums
    if READS_C:
        values += beta * tl.load(C + places, mask=inside, other=0.0)
    tl.store(D + places, values, mask=inside)
