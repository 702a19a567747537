// A slice of a matrix, which all threads of a block copy into shared memory (tiled, tuned).
//
// A thread moves chunks of 16 bytes by `move_chunk`, the kernel's choice: at once, or by a copy that it waits for later.
// Where the matrix ends within a chunk, or its columns do not begin at multiples of 16 bytes, it moves element by element.
#pragma once
#include "gemm.cuh"

// Of the slice's ROWS×COLUMNS the first `rows` and `columns` lie in the matrix. The others become zero.
template <int ROWS, int COLUMNS, int STRIDE, int THREADS, void (*move_chunk)(Element *, const Element *)>
__device__ void copy_slice(Element *to, const Element *from, int leading, int rows, int columns)
{
    const bool whole_chunks = leading % CHUNK == 0 && reinterpret_cast<size_t>(from) % 16 == 0;
    #pragma unroll
    for (int i = threadIdx.x * CHUNK; i < ROWS * COLUMNS; i += THREADS * CHUNK) {
        const int row = i % ROWS, column = i / ROWS;
        Element *place = to + row + column * STRIDE;
        const Element *source = from + row + column * size_t(leading);
        if (whole_chunks && row + CHUNK <= rows && column < columns) {
            move_chunk(place, source);
        } else {
            for (int j = 0; j < CHUNK; j++)
                place[j] = row + j < rows && column < columns ? source[j] : Element(0);
        }
    }
}
