// wgmma: 128×128 of D a block; one warp fetches, four multiply, and nobody waits but for numbers.
//
// Reading guide
//   1. tuned lets every warp copy and multiply. Here warps have roles: warp 4 fetches by TMA, the copy engine that
//      Hopper added, and warps 0 to 3, a warpgroup, multiply. They meet in a ring of three stages: ring.cuh, which is
//      most of the kernel.
//   2. wgmma multiplies 64×16 by 16×128 for the whole warpgroup, straight from shared memory: nothing is loaded into
//      registers but the sums. It runs while the threads go on, so that the Tensor Cores always have the next product
//      waiting.
//   3. A thread holds 2·64 sums of D's 128×128. Two blocks fit on a multiprocessor: one multiplies while the other
//      begins or ends.
//   4. What is left to gain: for 64 of K a block fetches 128 + 128 columns for 128·128 sums; and the time between two
//      blocks. wgmma_persistent.cu begins there.
//
// Launch: block (160), grid (ceil(M / 128) * ceil(N / 128)), `dynamic` bytes of dynamic shared memory; sm_90a alone.
#include "ring.cuh"

constexpr int BLOCK_M = 128, BLOCK_N = 128, STAGES = 3, CONSUMERS = 128, PRODUCERS = 32;

extern "C" __global__ void __launch_bounds__(CONSUMERS + PRODUCERS, 2)
gemm_wgmma(const Element *A, const Element *B, const Sum *C, Sum *D, int M, int N, int K, int lda, int ldb, int ldc,
           Sum alpha, Sum beta, const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    auto &ring = *reinterpret_cast<Ring<BLOCK_M, BLOCK_N, STAGES> *>(memory);
    const bool by_tma = suits_tma(A, lda) && suits_tma(B, ldb);
    const Place block = block_place<BLOCK_M, BLOCK_N>(blockIdx.x, M, N);
    const int slices = (K + BLOCK_K - 1) / BLOCK_K;

    begin(ring, by_tma ? 1 : PRODUCERS, CONSUMERS / LANES);
    Turn<STAGES> turn;
    if (threadIdx.x >= CONSUMERS) {
        const Operand a{a_map, A, lda, M, K}, b{b_map, B, ldb, K, N};
        fetch<PRODUCERS>(ring, turn, a, b, by_tma, block, slices);
    } else {
        float sums[BLOCK_M / LINE][BLOCK_N / 2];
        multiply(sums, ring, turn, 0, slices);
        const size_t place = block.row + block.column * size_t(ldc);
        store_sums(sums, C + place, D + place, ldc, M - block.row, N - block.column, alpha, beta);
    }
}
