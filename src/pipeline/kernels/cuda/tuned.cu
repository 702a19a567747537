// tuned: a block computes 128×256 elements of D; copies run while the Tensor Cores multiply.
//
// Reading guide
//   1. K is cut into slices of 32, and shared memory holds three of them (stages). cp.async copies from global to shared
//      memory past the registers, and the thread goes on: while slice s is multiplied, s + 1 and s + 2 are on their way.
//      Each slice is one group of copies (commit); `wait_prior(AHEAD - 1)` waits until the oldest has arrived.
//   2. One barrier for each slice. After it the copies of all threads have arrived, and all warps have finished the slice
//      before, whose stage the next copies overwrite. These begin between the two halves of the slice: while threads
//      compute addresses the Tensor Cores have work.
//   3. Each of the 8 warps computes 64×64 of D: 4×4 tiles. For 8 tiles that it loads from shared memory it multiplies 16.
//   4. A column of a slice is padded by 16 bytes, so that eight neighbouring columns begin in different banks.
//   5. With fp16 the loads become LDSM, one instruction for 16×16 halves; with bf16 NVRTC 13.5 makes generic loads of
//      them (LD, MOVM), which cost more registers and time. fp16 is what the kernel is tuned for.
//   6. Blocks are numbered so that 8 block rows are computed together, column by column (place.cuh): blocks that run at
//      the same time read the same parts of A and B, which stay in the L2 cache.
//
// Launch: block (256), grid (ceil(M / 128) * ceil(N / 256)), SHARED bytes of dynamic shared memory.
#include <cuda_pipeline_primitives.h>

#include "place.cuh"
#include "slices.cuh"

constexpr int BLOCK_M = 128, BLOCK_N = 256, BLOCK_K = 32, WARP = 64, THREADS = 256, STAGES = 3, AHEAD = STAGES - 1;
constexpr int STRIDE_A = BLOCK_M + CHUNK, STRIDE_B = BLOCK_K + CHUNK, TILES = WARP / TILE;

struct Stage {
    Element a[BLOCK_K * STRIDE_A];
    Element b[BLOCK_N * STRIDE_B];
};

struct Shared {
    Stage stages[STAGES];
    Scratch scratches[THREADS / 32];
};

__device__ void move_chunk(Element *place, const Element *source)
{
    __pipeline_memcpy_async(place, source, 16);
}

// Half of a slice: TILE_K of its BLOCK_K, from `step` on.
__device__ void multiply(TileD (&sums)[TILES][TILES], const Stage &stage, int step, int warp_row, int warp_column)
{
    static_assert(BLOCK_K == 2 * TILE_K, "two halves");
    TileA a[TILES];
    TileB b[TILES];
    #pragma unroll
    for (int i = 0; i < TILES; i++) {
        load_aligned(a[i], stage.a + warp_row + i * TILE + step * STRIDE_A, STRIDE_A);
        load_aligned(b[i], stage.b + step + (warp_column + i * TILE) * STRIDE_B, STRIDE_B);
    }
    #pragma unroll
    for (int i = 0; i < TILES; i++)
        #pragma unroll
        for (int j = 0; j < TILES; j++) wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_tuned(const Element *A, const Element *B, const Sum *C, Sum *D, int M, int N, int K, int lda, int ldb, int ldc,
           Sum alpha, Sum beta)
{
    extern __shared__ __align__(128) unsigned char memory[];
    Shared &shared = *reinterpret_cast<Shared *>(memory);
    const int warp = threadIdx.x / warpSize;
    const int warp_row = warp % (BLOCK_M / WARP) * WARP, warp_column = warp / (BLOCK_M / WARP) * WARP;
    const Place block = block_place<BLOCK_M, BLOCK_N>(blockIdx.x, M, N);
    const int slices = (K + BLOCK_K - 1) / BLOCK_K;

    TileD sums[TILES][TILES];
    #pragma unroll
    for (auto &line : sums)
        #pragma unroll
        for (TileD &tile : line) wmma::fill_fragment(tile, Sum(0));

    const auto start_slice = [&](int slice) {
        const int k = slice * BLOCK_K;
        Stage &stage = shared.stages[slice % STAGES];
        copy_slice<BLOCK_M, BLOCK_K, STRIDE_A, THREADS, move_chunk>(
            stage.a, A + block.row + k * size_t(lda), lda, M - block.row, K - k);
        copy_slice<BLOCK_K, BLOCK_N, STRIDE_B, THREADS, move_chunk>(
            stage.b, B + k + block.column * size_t(ldb), ldb, K - k, N - block.column);
    };

    for (int slice = 0; slice < AHEAD; slice++) {
        start_slice(slice);
        __pipeline_commit();
    }
    for (int slice = 0; slice < slices; slice++) {
        __pipeline_wait_prior(AHEAD - 1);   // this thread's copies of the slice have arrived
        __syncthreads();                    // those of the others too, and the slice before has been multiplied
        const Stage &stage = shared.stages[slice % STAGES];
        multiply(sums, stage, 0, warp_row, warp_column);
        if (slice + AHEAD < slices) start_slice(slice + AHEAD);
        __pipeline_commit();
        multiply(sums, stage, TILE_K, warp_row, warp_column);
    }

    #pragma unroll
    for (int i = 0; i < TILES; i++)
        #pragma unroll
        for (int j = 0; j < TILES; j++) {
            const int row = block.row + warp_row + i * TILE, column = block.column + warp_column + j * TILE;
            const size_t place = row + column * size_t(ldc);
            store_tile(sums[i][j], C + place, D + place, ldc, M - row, N - column, alpha, beta, shared.scratches[warp]);
        }
}
