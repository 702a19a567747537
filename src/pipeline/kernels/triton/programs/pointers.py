"""triton: a program computes one tile of D, by pointers to each element of A and B.

Reading guide
  1. Triton writes a program for a whole block of threads: `rows[:, None] * lda + inner[None, :]` are the places of
     BLOCK_M × BLOCK_K elements at once. Which thread loads which of them, through shared memory and past the registers
     or not, the compiler decides.
  2. K is cut into slices of BLOCK_K. Of a slice that sticks out of A or B, what lies outside is taken as 0 (`mask`,
     `other`), so that any M, N and K are computed by the same loop.
  3. `tl.dot` becomes wgmma on Hopper (HGMMA in the machine code), mma.sync elsewhere (HMMA). It adds in fp32.
  4. With `stages` 3 the compiler lets the copies of the next two slices run while one is multiplied: what tuned.cu does
     by hand with cp.async.
  5. Leading dimensions that are multiples of 16 are known to the compiler as such: it then copies 16 bytes at a time,
     otherwise element by element.

Launch: a program for each tile of D, in the order of `tile_place`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pipeline.kernels.triton.programs.tiles import store_tile, tile_place


@triton.jit
def gemm(
    A,
    B,
    C,
    D,
    M,
    N,
    K,
    lda,
    ldb,
    ldc,
    alpha,
    beta,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    READS_C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row, column = tile_place(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP)
    rows, columns, inner = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    from_a = A + rows[:, None].to(tl.int64) * lda + inner[None, :]
    from_b = B + inner[:, None].to(tl.int64) * ldb + columns[None, :]
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(from_a, mask=(rows[:, None] < M) & (inner[None, :] < K - k), other=0.0)
        b = tl.load(from_b, mask=(inner[:, None] < K - k) & (columns[None, :] < N), other=0.0)
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
        from_a += BLOCK_K
        from_b += BLOCK_K * ldb
    store_tile(sums, C, D, row, column, M, N, ldc, alpha, beta, BLOCK_M, BLOCK_N, READS_C)
