// tuned: a block computes 128×256 elements of D; copies and loads run while the Tensor Cores multiply.
//
// Reading guide
//   1. K is cut into slices, and shared memory holds three of them (stages). cp.async copies from global to shared
//      memory past the registers, and the thread goes on: while slice s is multiplied, s + 1 and s + 2 are on their way.
//      Each slice is one group of copies (commit); `wait_prior(AHEAD - 1)` waits until the oldest has arrived.
//   2. Each of the 8 warps computes 64×64 of D: 4×4 tiles. A step is 16 of K: for 8 tiles that a warp loads from shared
//      memory it multiplies 16. It has two sets of them (inputs): while it multiplies one, the next is loaded.
//   3. One barrier for each slice, in its last step, before tiles of the next slice are loaded. After it the copies of
//      all threads have arrived, and all warps have loaded what they need of this slice, so that the copies that begin
//      in the next step may overwrite it. They are spread over the other steps, which each start some of them.
//   4. The host says how deep a slice is (SLICE_K): in fp16 64 of K, where a block may have the shared memory for that,
//      else 32. The deeper, the fewer barriers. In bf16 the registers do not suffice for 64.
//   5. Where K is a multiple of a slice, most blocks lie in D, and their slices in A and B. Their loop has no branches
//      (WHOLE), so that the compiler can put loads and copies between the matmuls. The others check the bounds of every
//      chunk (slices.cuh).
//   6. A column of a slice is padded by 16 bytes, so that eight neighbouring columns begin in different banks.
//   7. With fp16 the loads become LDSM, one instruction for 16×16 halves; with bf16 NVRTC makes generic loads of them
//      (LD, MOVM), which cost more registers and time. fp16 is what the kernel is tuned for.
//   8. Blocks are numbered so that blocks that run at the same time read the same parts of A and B, which stay in the
//      L2 cache (place.cuh).
//
// Launch: block (256), grid (ceil(M / 128) * ceil(N / 256)), sizeof(Shared) bytes of dynamic shared memory.
#include <cuda_pipeline_primitives.h>

#include "place.cuh"
#include "slices.cuh"

constexpr int BLOCK_M = 128, BLOCK_N = 256, BLOCK_K = SLICE_K, WARP = 64, THREADS = 256, STAGES = 3, AHEAD = STAGES - 1;
constexpr int STRIDE_A = BLOCK_M + CHUNK, STRIDE_B = BLOCK_K + CHUNK, TILES = WARP / TILE;
constexpr int STEPS = BLOCK_K / TILE_K, PARTS = STEPS - 1;  // of a slice's matmuls, and of its copies
static_assert(STEPS % 2 == 0, "the two sets of inputs take turns across slices");

struct Stage {
    Element a[BLOCK_K * STRIDE_A];
    Element b[BLOCK_N * STRIDE_B];
};

union Shared {
    Stage stages[STAGES];
    Scratch scratches[THREADS / 32];  // once all has been multiplied
};

// A and B from the block's first row and column on, and how much of them there is.
struct Operands {
    const Element *a, *b;
    int lda, ldb, rows, columns, depth;
};

// What a warp multiplies in a step.
struct Inputs {
    TileA a[TILES];
    TileB b[TILES];
};

__device__ void move_chunk(Element *place, const Element *source)
{
    __pipeline_memcpy_async(place, source, 16);
}

// Begins part `part` of the copies of the slice with which the operands begin.
template <bool WHOLE>
__device__ __forceinline__ void copy(Stage &stage, const Operands &from, int part)
{
    if (WHOLE) {
        copy_whole<BLOCK_M, BLOCK_K, STRIDE_A, THREADS, move_chunk>(stage.a, from.a, from.lda, part, PARTS);
        copy_whole<BLOCK_K, BLOCK_N, STRIDE_B, THREADS, move_chunk>(stage.b, from.b, from.ldb, part, PARTS);
    } else if (part == 0) {
        copy_slice<BLOCK_M, BLOCK_K, STRIDE_A, THREADS, move_chunk>(
            stage.a, from.a, from.lda, from.rows, from.depth);
        copy_slice<BLOCK_K, BLOCK_N, STRIDE_B, THREADS, move_chunk>(
            stage.b, from.b, from.ldb, from.depth, from.columns);
    }
}

__device__ __forceinline__ void next_slice(Operands &from)
{
    from.a += BLOCK_K * size_t(from.lda);
    from.b += BLOCK_K;
    from.depth -= BLOCK_K;
}

__device__ __forceinline__ void load(Inputs &inputs, const Stage &stage, int step, int warp_row, int warp_column)
{
    const Element *a = stage.a + warp_row + step * TILE_K * STRIDE_A;
    const Element *b = stage.b + warp_column * STRIDE_B + step * TILE_K;
    #pragma unroll
    for (int i = 0; i < TILES; i++) load_aligned(inputs.a[i], a + i * TILE, STRIDE_A);
    #pragma unroll
    for (int i = 0; i < TILES; i++) load_aligned(inputs.b[i], b + i * TILE * STRIDE_B, STRIDE_B);
}

// Back and forth, so that two consecutive matmuls share a tile.
__device__ __forceinline__ void multiply(TileD (&sums)[TILES][TILES], const Inputs &inputs)
{
    #pragma unroll
    for (int i = 0; i < TILES; i++)
        #pragma unroll
        for (int k = 0; k < TILES; k++) {
            const int j = i % 2 ? TILES - 1 - k : k;
            wmma::mma_sync(sums[i][j], inputs.a[i], inputs.b[j], sums[i][j]);
        }
}

// Adds up the warp's part of D over all of K. WHOLE: all slices lie in A and B, in chunks of 16 bytes.
template <bool WHOLE>
__device__ __forceinline__ void add_up(TileD (&sums)[TILES][TILES], Stage (&stages)[STAGES], Operands from,
                                       int warp_row, int warp_column)
{
    const int slices = (from.depth + BLOCK_K - 1) / BLOCK_K;
    for (int slice = 0; slice < AHEAD; slice++) {
        if (slice < slices)
            #pragma unroll
            for (int part = 0; part < PARTS; part++) copy<WHOLE>(stages[slice], from, part);
        next_slice(from);
        __pipeline_commit();
    }
    Inputs inputs[2];
    __pipeline_wait_prior(AHEAD - 1);  // this thread's copies of the first slice have arrived
    __syncthreads();                   // those of the others too
    load(inputs[0], stages[0], 0, warp_row, warp_column);

    int now = 0, later = AHEAD;  // stages: of the slice that is multiplied, and of the one that is fetched
    #pragma unroll 1
    for (int slice = 0; slice < slices; slice++) {
        const int next = now + 1 == STAGES ? 0 : now + 1;
        #pragma unroll
        for (int step = 0; step < STEPS; step++) {
            if (step == STEPS - 1) {
                __pipeline_wait_prior(AHEAD - 1);  // the next slice has arrived
                __syncthreads();                   // for all; and this one has been loaded by all
                const int loaded = slice + 1 < slices ? next : now;  // after the last one nobody multiplies it
                load(inputs[(step + 1) % 2], stages[loaded], 0, warp_row, warp_column);
            } else {
                load(inputs[(step + 1) % 2], stages[now], step + 1, warp_row, warp_column);
                if (slice + AHEAD < slices) copy<WHOLE>(stages[later], from, step);
            }
            if (step == PARTS - 1) __pipeline_commit();
            multiply(sums, inputs[step % 2]);
        }
        next_slice(from);
        later = now;
        now = next;
    }
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
    const Operands from{A + block.row, B + block.column * size_t(ldb), lda, ldb, M - block.row, N - block.column, K};

    TileD sums[TILES][TILES];
    #pragma unroll
    for (auto &line : sums)
        #pragma unroll
        for (TileD &tile : line) wmma::fill_fragment(tile, Sum(0));

    const bool chunks = in_chunks(from.a, lda) && in_chunks(from.b, ldb);
    if (chunks && from.rows >= BLOCK_M && from.columns >= BLOCK_N && K % BLOCK_K == 0)
        add_up<true>(sums, shared.stages, from, warp_row, warp_column);
    else
        add_up<false>(sums, shared.stages, from, warp_row, warp_column);

    __syncthreads();  // all warps have loaded from the stages, where the scratch memory lies
    #pragma unroll
    for (int i = 0; i < TILES; i++)
        #pragma unroll
        for (int j = 0; j < TILES; j++) {
            const int row = block.row + warp_row + i * TILE, column = block.column + warp_column + j * TILE;
            const size_t place = row + column * size_t(ldc);
            store_tile(sums[i][j], C + place, D + place, ldc, M - row, N - column, alpha, beta, shared.scratches[warp]);
        }
}
