// What the kernels of this folder share: the dtypes, and a tile of 16×16 numbers at any place of a matrix.
//
// All matrices lie column by column: element (i, j) of A is A[i + j * lda]. The host defines one of FP16, BF16, TF32, INT8.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

namespace wmma = nvcuda::wmma;

#if defined(FP16)
using Element = half;  // of A and B in memory
using Input = half;    // what the Tensor Core multiplies
using Sum = float;     // what it adds in; the elements of C and D
constexpr int TILE_K = 16;
#elif defined(BF16)
using Element = __nv_bfloat16;
using Input = __nv_bfloat16;
using Sum = float;
constexpr int TILE_K = 16;
#elif defined(TF32)
using Element = float;
using Input = wmma::precision::tf32;
using Sum = float;
constexpr int TILE_K = 8;
#elif defined(FP32)  // no Tensor Core multiplies it: for grid_stride alone
using Element = float;
using Sum = float;
#elif defined(INT8)
using Element = signed char;
using Input = signed char;
using Sum = int;
constexpr int TILE_K = 16;
#endif

#if !defined(FP32)
constexpr int TILE = 16;  // rows and columns of a tile of D
constexpr int CHUNK = 16 / sizeof(Element);  // elements in 16 bytes, the most that one instruction of a thread moves

using TileA = wmma::fragment<wmma::matrix_a, TILE, TILE, TILE_K, Input, wmma::col_major>;
using TileB = wmma::fragment<wmma::matrix_b, TILE, TILE, TILE_K, Input, wmma::col_major>;
using TileD = wmma::fragment<wmma::accumulator, TILE, TILE, TILE_K, Sum>;

// Numbers of shared memory for each warp, where a tile at the edge of a matrix gets its missing rows and columns.
union __align__(32) Scratch {
    Element inputs[TILE * TILE];
    Sum sums[TILE * TILE];
};

// Whether load_matrix_sync and store_matrix_sync can take a tile where it lies: CUDA wants its address to be a multiple
// of 32 bytes and its leading dimension one of 16 bytes.
template <class T>
__device__ bool is_aligned(const T *tile, int leading)
{
    return reinterpret_cast<size_t>(tile) % 32 == 0 && leading * sizeof(T) % 16 == 0;
}

// Loads a tile that lies where load_matrix_sync can take it. Of a TF32 number the Tensor Core reads 19 bits: it is
// rounded to them here, since the hardware would cut off the others.
template <class Tile>
__device__ void load_aligned(Tile &to, const Element *from, int leading)
{
    wmma::load_matrix_sync(to, from, leading);
#if defined(TF32)
    for (int i = 0; i < to.num_elements; i++) to.x[i] = wmma::__float_to_tf32(to.x[i]);
#endif
}

// Loads a tile of ROWS×COLUMNS, of which the first `rows` and `columns` lie in the matrix. The others become zero.
template <int ROWS, int COLUMNS, class Tile>
__device__ void load_tile(Tile &to, const Element *from, int leading, int rows, int columns, Scratch &scratch)
{
    if (rows >= ROWS && columns >= COLUMNS && is_aligned(from, leading)) {
        load_aligned(to, from, leading);
    } else {
        __syncwarp();  // no lane still reads what lies in the scratch memory
        for (int i = threadIdx.x % warpSize; i < ROWS * COLUMNS; i += warpSize) {
            const int row = i % ROWS, column = i / ROWS;
            const bool inside = row < rows && column < columns;
            scratch.inputs[i] = inside ? from[row + column * size_t(leading)] : Element(0);
        }
        __syncwarp();  // all lanes have written
        load_aligned(to, scratch.inputs, ROWS);
    }
}

// Writes alpha·sums + beta·C to a tile of D, of which the first `rows` and `columns` lie in the matrix: all, some, or
// (zero or less) none. With beta = 0 C is not read: it may hold anything, NaN too.
__device__ void store_tile(TileD &sums, const Sum *C, Sum *D, int leading, int rows, int columns, Sum alpha, Sum beta,
                           Scratch &scratch)
{
    if (rows >= TILE && columns >= TILE && is_aligned(C, leading) && is_aligned(D, leading)) {
        TileD c;
        wmma::fill_fragment(c, Sum(0));
        if (beta != 0) wmma::load_matrix_sync(c, C, leading, wmma::mem_col_major);
        for (int i = 0; i < sums.num_elements; i++) sums.x[i] = alpha * sums.x[i] + beta * c.x[i];
        wmma::store_matrix_sync(D, sums, leading, wmma::mem_col_major);
    } else {
        __syncwarp();  // no lane still reads what lies in the scratch memory
        wmma::store_matrix_sync(scratch.sums, sums, TILE, wmma::mem_col_major);
        __syncwarp();  // all lanes have written
        for (int i = threadIdx.x % warpSize; i < TILE * TILE; i += warpSize) {
            const int row = i % TILE, column = i / TILE;
            if (row < rows && column < columns) {
                const size_t at = row + column * size_t(leading);
                D[at] = alpha * scratch.sums[i] + (beta != 0 ? beta * C[at] : Sum(0));
            }
        }
    }
}
#endif
