// A slice of a matrix, which all threads of a block copy into shared memory (tiled, tuned).
//
// A thread moves chunks of 16 bytes by `move_chunk`, the kernel's choice: at once, or by a copy that it waits for later.
// Where the matrix ends within a chunk, or its columns do not begin at multiples of 16 bytes, it moves element by element.
#pragma once
#include "gemm.cuh"

// Of the slice's ROWS×COLUMNS the first `rows` and `columns` lie in the matrix. The others become zero. Where all of them
// do, no branch stands between a thread's chunks, which lie at equal distances.
template <int ROWS, int COLUMNS, int STRIDE, int THREADS, void (*move_chunk)(Element *, const Element *)>
__device__ void copy_slice(Element *to, const Element *from, int leading, int rows, int columns)
{
    constexpr int APART = THREADS * CHUNK / ROWS;  // columns from a thread's chunk to its next one
    static_assert(THREADS * CHUNK % ROWS == 0 && COLUMNS % APART == 0, "a thread's chunks lie in one row");
    const int first_row = threadIdx.x * CHUNK % ROWS, first_column = threadIdx.x * CHUNK / ROWS;
    const bool whole_chunks = leading % CHUNK == 0 && reinterpret_cast<size_t>(from) % 16 == 0;
    if (whole_chunks && rows >= ROWS && columns >= COLUMNS) {
        Element *place = to + first_row + first_column * STRIDE;
        const Element *source = from + first_row + first_column * size_t(leading);
        #pragma unroll
        for (int i = 0; i < COLUMNS / APART; i++)
            move_chunk(place + i * APART * STRIDE, source + i * APART * size_t(leading));
        return;
    }
    #pragma unroll 1
    for (int column = first_column; column < COLUMNS; column += APART) {
        Element *place = to + first_row + column * STRIDE;
        const Element *source = from + first_row + column * size_t(leading);
        if (whole_chunks && first_row + CHUNK <= rows && column < columns) {
            move_chunk(place, source);
        } else {
            const int inside = column < columns ? rows - first_row : 0;
            #pragma unroll
            for (int j = 0; j < CHUNK; j++) place[j] = j < inside ? source[j] : Element(0);
        }
    }
}
