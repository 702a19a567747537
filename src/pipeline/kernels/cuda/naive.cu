// naive: D = alpha·A·B + beta·C, one warp for each 16×16 tile of D. The first program for Tensor Cores, as NVIDIA
// introduced them (J. Appleyard, S. Yokim, "Programming Tensor Cores in CUDA 9", NVIDIA Developer Blog, 2017).
//
// Reading guide
//   1. A block has 4×4 warps, so it computes 64×64 elements of D. `row` and `column`: where this warp's tile begins.
//   2. The warp walks along K. In each step it loads a 16×16 tile of A and one of B, and one instruction of the whole
//      warp multiplies them: 4,096 multiplications and additions. A fragment is spread over the registers of 32 lanes.
//   3. The sums stay in registers until the end; then alpha, beta and C join (store_tile in gemm.cuh).
//   4. M, N and K need not be multiples of 16. A warp outside D has nothing to do; a tile that sticks out of a matrix
//      is filled up with zeros in shared memory (load_tile in gemm.cuh).
// Why it is slow: for each step of 8,192 FLOP a warp fetches 1 KB (fp16) from the caches, 8 FLOP for a byte, and nothing
// that a neighbour has fetched is shared. tiled.cu begins there.
//
// Launch: block (128, 4), grid (ceil(M / 64), ceil(N / 64)).
#include "gemm.cuh"

constexpr int WARPS_DOWN = 4, WARPS_ACROSS = 4;

extern "C" __global__ void __launch_bounds__(WARPS_DOWN * WARPS_ACROSS * 32)
gemm_naive(const Element *A, const Element *B, const Sum *C, Sum *D, int M, int N, int K, int lda, int ldb, int ldc,
           Sum alpha, Sum beta)
{
    __shared__ Scratch scratches[WARPS_ACROSS][WARPS_DOWN];
    const int warp = threadIdx.x / warpSize;
    const int row = (blockIdx.x * WARPS_DOWN + warp) * TILE;
    const int column = (blockIdx.y * WARPS_ACROSS + threadIdx.y) * TILE;
    if (row >= M || column >= N) return;
    Scratch &scratch = scratches[threadIdx.y][warp];

    TileD sums;
    wmma::fill_fragment(sums, Sum(0));
    for (int k = 0; k < K; k += TILE_K) {
        TileA a;
        TileB b;
        load_tile<TILE, TILE_K>(a, A + row + k * size_t(lda), lda, M - row, K - k, scratch);
        load_tile<TILE_K, TILE>(b, B + k + column * size_t(ldb), ldb, K - k, N - column, scratch);
        wmma::mma_sync(sums, a, b, sums);
    }
    const size_t place = row + column * size_t(ldc);
    store_tile(sums, C + place, D + place, ldc, M - row, N - column, alpha, beta, scratch);
}
