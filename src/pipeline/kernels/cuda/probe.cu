// probe: the same few tiles multiplied again and again, in registers. Nothing is fetched and nothing waits, so that no
// kernel whose products are made this way can be faster: it is the roof of the roofline.
//
// Reading guide
//   1. A warp keeps 2 tiles of A, 4 of B and the 8 tiles of sums that belong to them. In a round it makes all 8 products:
//      none waits for another, only for itself one round ago.
//   2. After `rounds` of them the sums are rounds·A·B, which the host compares: a round that was not computed shows.
//   3. Without Tensor Cores (FP32) a lane keeps one number of A, 32 of B and 32 sums, and does 32 multiply-adds a round.
//   4. wgmma reads A and B from shared memory, by another instruction: probe_wgmma.cu.
//
// Launch: block (256), as many blocks as the card holds at once. A: M×K, in tiles of 16 rows, each column by column; B:
// K×N; D: M×N for each warp, one behind the other. Tensor Cores: M 32, N 64, K 16 (TF32: 8); without: 32, 32, 1.
#include "gemm.cuh"

constexpr int THREADS = 256, BLOCKS = 2;  // of a multiprocessor: 128 registers for each thread
constexpr int LANES = 32;

#if defined(FP32)
constexpr int COLUMNS = 32;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
probe(const Element *A, const Element *B, Sum *D, int rounds)
{
    const int lane = threadIdx.x % LANES;
    const size_t warp = (blockIdx.x * THREADS + threadIdx.x) / LANES;
    const float a = A[lane];
    float b[COLUMNS], sums[COLUMNS];
    #pragma unroll
    for (int j = 0; j < COLUMNS; j++) b[j] = B[j], sums[j] = 0;
    for (int round = 0; round < rounds; round++)
        #pragma unroll
        for (int j = 0; j < COLUMNS; j++) sums[j] = fmaf(a, b[j], sums[j]);
    #pragma unroll
    for (int j = 0; j < COLUMNS; j++) D[(warp * COLUMNS + j) * LANES + lane] = sums[j];
}
#else
constexpr int DOWN = 2, ACROSS = 4;  // tiles

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
probe(const Element *A, const Element *B, Sum *D, int rounds)
{
    const size_t warp = (blockIdx.x * THREADS + threadIdx.x) / LANES;
    TileA a[DOWN];
    TileB b[ACROSS];
    TileD sums[DOWN][ACROSS];
    #pragma unroll
    for (int i = 0; i < DOWN; i++) load_aligned(a[i], A + i * TILE * TILE_K, TILE);
    #pragma unroll
    for (int j = 0; j < ACROSS; j++) load_aligned(b[j], B + j * TILE * TILE_K, TILE_K);
    #pragma unroll
    for (int i = 0; i < DOWN; i++)
        #pragma unroll
        for (int j = 0; j < ACROSS; j++) wmma::fill_fragment(sums[i][j], Sum(0));
    for (int round = 0; round < rounds; round++)
        #pragma unroll
        for (int i = 0; i < DOWN; i++)
            #pragma unroll
            for (int j = 0; j < ACROSS; j++) wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
    Sum *mine = D + warp * (DOWN * ACROSS * TILE * TILE);
    #pragma unroll
    for (int i = 0; i < DOWN; i++)
        #pragma unroll
        for (int j = 0; j < ACROSS; j++)
            wmma::store_matrix_sync(mine + (j * TILE * DOWN + i) * TILE, sums[i][j], DOWN * TILE, wmma::mem_col_major);
}
#endif
