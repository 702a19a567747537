// wgmma_persistent: 128×256 of D at a time, by blocks that stay: as many as the card has multiprocessors.
//
// Reading guide
//   1. The ring is that of wgmma (ring.cuh), with four stages of 48 KB. Two warpgroups multiply: each has 64 of the 128
//      rows, reads its half of A and all of B, and holds 128 sums a thread. For 64 of K 128 + 256 columns are fetched
//      for 128·256 sums: a quarter fewer bytes for each product than in wgmma.
//   2. A block computes its tile of D, then the one that lies as many tiles further as there are blocks, until there
//      are none. The ring goes on turning: while the sums of one tile are written, the slices of the next one are
//      fetched.
//   3. Registers: a multiprocessor has 65,536, of which 3·128 threads could have 168 each. That is too few for the
//      sums, and whoever fetches needs hardly any. So the first warpgroup keeps 40, and the two others take 232
//      (setmaxnreg).
//   4. Tiles are numbered so that 8 rows of them are computed together (place.cuh), for the L2 cache.
//
// Launch: block (384), grid (as many as there are multiprocessors, or tiles if these are fewer), `dynamic` bytes of
// dynamic shared memory; sm_90a alone.
#include "ring.cuh"

constexpr int BLOCK_M = 128, BLOCK_N = 256, STAGES = 4, WARPGROUP = 128, CONSUMERS = 2;
// Registers of a thread. setmaxnreg hands out what the block was given at its start: 65,536 for 3·128 threads, in eights.
constexpr int AT_START = 168, FETCHING = 40, MULTIPLYING = 232;
static_assert(FETCHING + CONSUMERS * MULTIPLYING <= (1 + CONSUMERS) * AT_START, "more registers than the block was given");

extern "C" __global__ void __launch_bounds__((1 + CONSUMERS) * WARPGROUP, 1)
gemm_wgmma_persistent(const Element *A, const Element *B, const Sum *C, Sum *D, int M, int N, int K, int lda, int ldb,
                      int ldc, Sum alpha, Sum beta, const __grid_constant__ TensorMap a_map,
                      const __grid_constant__ TensorMap b_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    auto &ring = *reinterpret_cast<Ring<BLOCK_M, BLOCK_N, STAGES> *>(memory);
    const bool by_tma = suits_tma(A, lda) && suits_tma(B, ldb);
    const int tiles = ((M + BLOCK_M - 1) / BLOCK_M) * ((N + BLOCK_N - 1) / BLOCK_N);
    const int slices = (K + BLOCK_K - 1) / BLOCK_K;
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / WARPGROUP, 0);  // the same in a warp, for the compiler

    begin(ring, by_tma ? 1 : WARPGROUP, CONSUMERS * WARPGROUP / LANES);
    Turn<STAGES> turn;
    if (warpgroup == 0) {
        fewer_registers<FETCHING>();
        const Operand a{a_map, A, lda, M, K}, b{b_map, B, ldb, K, N};
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)
            fetch<WARPGROUP>(ring, turn, a, b, by_tma, block_place<BLOCK_M, BLOCK_N>(tile, M, N), slices);
    } else {
        more_registers<MULTIPLYING>();
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            float sums[1][BLOCK_N / 2];
            release(ring, multiply(sums, ring, turn, warpgroup - 1, slices));
            const Place block = block_place<BLOCK_M, BLOCK_N>(tile, M, N);
            const int row = block.row + (warpgroup - 1) * LINE;
            const size_t place = row + block.column * size_t(ldc);
            store_sums(sums, C + place, D + place, ldc, M - row, N - block.column, alpha, beta);
        }
    }
}
