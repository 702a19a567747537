// A slice of a matrix, which all threads of a block copy into shared memory (tiled, tuned).
//
// A thread moves chunks of 16 bytes by `move_chunk`, the kernel's choice: at once, or by a copy that it waits for later.
// Where the matrix ends within a chunk, or its columns do not begin at multiples of 16 bytes, it moves element by element.
#pragma once
#include "gemm.cuh"

// The chunks of a slice of ROWS×COLUMNS that this thread copies: all in one row, APART columns between them.
template <int ROWS, int COLUMNS, int THREADS>
struct Chunks {
    static constexpr int APART = THREADS * CHUNK / ROWS, COUNT = COLUMNS / APART;
    static_assert(THREADS * CHUNK % ROWS == 0 && COLUMNS % APART == 0, "a thread's chunks lie in one row");
    const int row = threadIdx.x * CHUNK % ROWS, column = threadIdx.x * CHUNK / ROWS;  // of the first
};

// Whether the columns of a matrix begin at multiples of 16 bytes.
__device__ bool in_chunks(const Element *matrix, int leading)
{
    return leading % CHUNK == 0 && reinterpret_cast<size_t>(matrix) % 16 == 0;
}

// Part `part` of `parts` of a slice that lies in the matrix, in chunks: without a branch, so that the compiler can
// schedule other work between the copies.
template <int ROWS, int COLUMNS, int STRIDE, int THREADS, void (*move_chunk)(Element *, const Element *)>
__device__ void copy_whole(Element *to, const Element *from, int leading, int part = 0, int parts = 1)
{
    using Mine = Chunks<ROWS, COLUMNS, THREADS>;
    const Mine mine;
    Element *place = to + mine.row + mine.column * STRIDE;
    const Element *source = from + mine.row + mine.column * size_t(leading);
    #pragma unroll
    for (int i = Mine::COUNT * part / parts; i < Mine::COUNT * (part + 1) / parts; i++)
        move_chunk(place + i * Mine::APART * STRIDE, source + i * Mine::APART * size_t(leading));
}

// Of the slice's ROWS×COLUMNS the first `rows` and `columns` lie in the matrix. The others become zero.
template <int ROWS, int COLUMNS, int STRIDE, int THREADS, void (*move_chunk)(Element *, const Element *)>
__device__ void copy_slice(Element *to, const Element *from, int leading, int rows, int columns)
{
    const bool chunks = in_chunks(from, leading);
    if (chunks && rows >= ROWS && columns >= COLUMNS)
        return copy_whole<ROWS, COLUMNS, STRIDE, THREADS, move_chunk>(to, from, leading);
    using Mine = Chunks<ROWS, COLUMNS, THREADS>;
    const Mine mine;
    #pragma unroll 1
    for (int column = mine.column; column < COLUMNS; column += Mine::APART) {
        Element *place = to + mine.row + column * STRIDE;
        const Element *source = from + mine.row + column * size_t(leading);
        if (chunks && mine.row + CHUNK <= rows && column < columns) {
            move_chunk(place, source);
        } else {
            const int inside = column < columns ? rows - mine.row : 0;
            #pragma unroll
            for (int j = 0; j < CHUNK; j++) place[j] = j < inside ? source[j] : Element(0);
        }
    }
}
