// probe_wgmma: what probe.cu finds out, for the products of a warpgroup (sm_90a), which read A and B from shared memory.
//
// Reading guide
//   1. The threads of a block put 64×64 of A and 64×256 of B into shared memory once, swizzled as in ring.cuh.
//   2. Two warpgroups multiply them, each into sums of its own: one has products waiting while the other's are made. A
//      round is 64 of K, four products.
//   3. After `rounds` of them the sums are rounds·A·B.
//
// Launch: block (256), as many blocks as there are multiprocessors. A: 64×64, B: 64×256, both column by column; D: 64×256
// for each warpgroup, one behind the other.
#include "ring.cuh"

constexpr int GROUPS = 2, GROUP = 128;  // warpgroups of a block, and threads of one
constexpr int N = 256;

extern "C" __global__ void __launch_bounds__(GROUPS * GROUP, 1)
probe_wgmma(const Element *A, const Element *B, Sum *D, int rounds)
{
    __shared__ __align__(1024) Stage<LINE, N> stage;
    for (int i = threadIdx.x; i < BLOCK_K * LINE; i += GROUPS * GROUP)
        stage.a[0][swizzled(i / LINE, i % LINE)] = A[i];
    for (int i = threadIdx.x; i < N * LINE; i += GROUPS * GROUP) stage.b[swizzled(i / LINE, i % LINE)] = B[i];
    fence_async();  // wgmma sees what was written
    __syncthreads();

    // Once, which the compiler cannot know: without this loop it waits for all products at the end of each round.
    #pragma unroll 1
    for (int tile = blockIdx.x; tile < int(gridDim.x); tile += gridDim.x) {
        float sums[1][N / 2];
        #pragma unroll
        for (float &sum : sums[0]) sum = 0;
        wgmma_keep(sums[0]);
        const auto a = descriptor(stage.a[0]), b = descriptor(stage.b);
        #pragma unroll 1  // unrolled, the sums would need their registers twice
        for (int round = 0; round < rounds; round++) {
            wgmma_fence();
            #pragma unroll
            for (int k = 0; k < BLOCK_K; k += STEP_K) wgmma<N>(sums[0], a + k * LINE / CHUNK, b + k / CHUNK);
            wgmma_commit();
            wgmma_wait<1>();
        }
        wgmma_wait<0>();
        wgmma_keep(sums[0]);
        Sum *mine = D + (blockIdx.x * GROUPS + threadIdx.x / GROUP) * size_t(LINE * N);
        store_sums(sums, mine, mine, LINE, LINE, N, Sum(1), Sum(0));
    }
}
