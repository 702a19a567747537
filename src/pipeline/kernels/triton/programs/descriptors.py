"""triton_tma: as many programs as the GPU has multiprocessors, each of which computes one tile of D after the other.

Reading guide
  1. A tensor descriptor says once where a matrix lies, how large it is and which block of it is copied. From then on
     `a.load([row, k])` is one instruction of one thread: the Tensor Memory Accelerator of sm_90 and newer copies the
     whole block to shared memory (UTMALDG in the machine code) and puts zeros where it sticks out of the matrix. No
     thread computes addresses, and no registers hold them.
  2. It copies rows that begin at multiples of 16 bytes: the leading dimensions of A and B have to be multiples of 8
     elements. C and D are read and written by pointers, and may have any.
  3. The programs stay (persistent): the descriptors are made once for each, and, since `flatten` makes one loop of the
     two, the copies of the next tile's first slices run while the last tile is written.
  4. A tile is written in two halves: on its way to neighbouring places of D it passes through shared memory, where the
     whole of it (128 × 256 sums) has no room beside the slices.
  5. The order of the tiles is that of pointers.py: programs that run at the same time compute neighbouring tiles.

Launch: a program for each multiprocessor, or for each tile where these are fewer.
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
    a = tl.make_tensor_descriptor(A, shape=[M, K], strides=[lda, 1], block_shape=[BLOCK_M, BLOCK_K])
    b = tl.make_tensor_descriptor(B, shape=[K, N], strides=[ldb, 1], block_shape=[BLOCK_K, BLOCK_N])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = tile_place(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            sums = tl.dot(a.load([row, k]), b.load([k, column]), sums, input_precision=PRECISION)
        half: tl.constexpr = BLOCK_N // 2
        left, right = tl.split(tl.permute(tl.reshape(sums, (BLOCK_M, 2, half)), (0, 2, 1)))
        store_tile(left, C, D, row, column, M, N, ldc, alpha, beta, BLOCK_M, half, READS_C)
        store_tile(right, C, D, row, column + half, M, N, ldc, alpha, beta, BLOCK_M, half, READS_C)
