// tiled: a block computes 64×64 elements of D, and its four warps share what they fetch through shared memory.
//
// Reading guide
//   1. K is cut into slices of 32. For each slice the 128 threads copy 64×32 of A and 32×64 of B into shared memory,
//      16 bytes a thread where that is possible (copy_slice in slices.cuh), zeros where the matrix ends.
//   2. A barrier; then each warp multiplies its 32×32 part of D from there: four tiles, so that each tile of A and B that
//      is loaded into registers is used twice. Another barrier, since the next slice overwrites this one.
//   3. Compared with naive each byte from the caches is used 64 times instead of 16. What is left to gain: while the
//      slice is copied nobody multiplies, and while it is multiplied nothing is copied. tuned.cu begins there.
//
// A column of a slice is padded by 16 bytes, so that eight neighbouring columns begin in different banks.
//
// Launch: block (128), grid (ceil(M / 64), ceil(N / 64)).
#include "slices.cuh"

constexpr int BLOCK_M = 64, BLOCK_N = 64, BLOCK_K = 32, WARP = 32, THREADS = 128;
constexpr int STRIDE_A = BLOCK_M + CHUNK, STRIDE_B = BLOCK_K + CHUNK;

__device__ void move_chunk(Element *place, const Element *source)
{
    *reinterpret_cast<uint4 *>(place) = *reinterpret_cast<const uint4 *>(source);
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_tiled(const Element *A, const Element *B, const Sum *C, Sum *D, int M, int N, int K, int lda, int ldb, int ldc,
           Sum alpha, Sum beta)
{
    __shared__ __align__(32) Element a_slice[BLOCK_K * STRIDE_A];
    __shared__ __align__(32) Element b_slice[BLOCK_N * STRIDE_B];
    __shared__ Scratch scratches[THREADS / 32];
    const int warp = threadIdx.x / warpSize;
    const int block_row = blockIdx.x * BLOCK_M, block_column = blockIdx.y * BLOCK_N;
    const int warp_row = warp % 2 * WARP, warp_column = warp / 2 * WARP;

    TileD sums[WARP / TILE][WARP / TILE];
    #pragma unroll
    for (auto &line : sums)
        #pragma unroll
        for (TileD &tile : line) wmma::fill_fragment(tile, Sum(0));

    for (int k = 0; k < K; k += BLOCK_K) {
        copy_slice<BLOCK_M, BLOCK_K, STRIDE_A, THREADS, move_chunk>(
            a_slice, A + block_row + k * size_t(lda), lda, M - block_row, K - k);
        copy_slice<BLOCK_K, BLOCK_N, STRIDE_B, THREADS, move_chunk>(
            b_slice, B + k + block_column * size_t(ldb), ldb, K - k, N - block_column);
        __syncthreads();  // the slices are complete
        #pragma unroll
        for (int step = 0; step < BLOCK_K; step += TILE_K) {
            TileA a[WARP / TILE];
            TileB b[WARP / TILE];
            #pragma unroll
            for (int i = 0; i < WARP / TILE; i++) {
                load_aligned(a[i], a_slice + warp_row + i * TILE + step * STRIDE_A, STRIDE_A);
                load_aligned(b[i], b_slice + step + (warp_column + i * TILE) * STRIDE_B, STRIDE_B);
            }
            #pragma unroll
            for (int i = 0; i < WARP / TILE; i++)
                #pragma unroll
                for (int j = 0; j < WARP / TILE; j++) wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
        }
        __syncthreads();  // all warps have read the slices
    }

    #pragma unroll
    for (int i = 0; i < WARP / TILE; i++)
        #pragma unroll
        for (int j = 0; j < WARP / TILE; j++) {
            const int row = block_row + warp_row + i * TILE, column = block_column + warp_column + j * TILE;
            const size_t place = row + column * size_t(ldc);
            store_tile(sums[i][j], C + place, D + place, ldc, M - row, N - column, alpha, beta, scratches[warp]);
        }
}
