// grid_stride: D = alpha·A·B + beta·C without Tensor Cores, by a loop that fits a grid of any size.
//
// Reading guide
//   1. The elements of D are numbered column by column. Thread t of T computes t, t + T, t + 2T, ...: the stride is the
//      number of threads in the grid. Any number of blocks gives the same D; few blocks give each thread more work.
//   2. Neighbouring threads compute neighbouring rows, so a warp reads 32 neighbouring numbers of A at once, and all of it
//      the same number of B.
//   3. How long it takes against the work of a thread shows what a launch costs, how many threads a card needs to hide
//      the latency of its memory, and what is left over in the last round. `work` of grid_stride.py sets it.
//
// Launch: block (256), grid (ceil(M * N / (256 * work))).
#include "gemm.cuh"

extern "C" __global__ void __launch_bounds__(256)
gemm_grid_stride(const Element *A, const Element *B, const Sum *C, Sum *D, int M, int N, int K, int lda, int ldb, int ldc,
                 Sum alpha, Sum beta)
{
    const size_t threads = size_t(gridDim.x) * blockDim.x, elements = size_t(M) * N;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < elements; i += threads) {
        const size_t row = i % M, column = i / M, place = row + column * ldc;
        Sum sum = 0;
        for (int k = 0; k < K; k++) sum += Sum(A[row + k * size_t(lda)]) * Sum(B[k + column * ldb]);
        D[place] = alpha * sum + (beta != 0 ? beta * C[place] : Sum(0));
    }
}
