// The micro-kernel: a tile of D that stays in registers while it runs along K.
//
// Reading guide
//   1. Vector, LANES      what one instruction works on: 16 floats with AVX-512, 8 with AVX, 4 with NEON or SSE.
//   2. VECTORS, COLUMNS   the tile: VECTORS registers high (ROWS floats), COLUMNS wide. Each of its sums is a register, so
//                         16 registers give 2 x 6 (12 sums, 2 of A, 1 of B), 32 registers 2 x 12.
//   3. sums()             for each k: load ROWS numbers of A, then for each column broadcast one number of B and add the
//                         products. ROWS * COLUMNS multiply-adds for ROWS + COLUMNS numbers read: with 16 x 6 that is 4.4
//                         for each, where the naive loop has 1 for every 2. At least 8 independent sums are needed to fill
//                         two FMA units that take 4 cycles each; 12 and 24 do.
//   4. store()            D = alpha * sums + beta * C, of the part of the tile that lies in D.
#pragma once
#include <cstring>

#if defined(__AVX512F__)
constexpr long LANES = 16, VECTORS = 2, COLUMNS = 12;
#elif defined(__AVX__)
constexpr long LANES = 8, VECTORS = 2, COLUMNS = 6;
#elif defined(__aarch64__)
constexpr long LANES = 4, VECTORS = 2, COLUMNS = 12;
#else
constexpr long LANES = 4, VECTORS = 2, COLUMNS = 6;
#endif
constexpr long ROWS = VECTORS * LANES;

typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));

struct Tile {
    Vector sum[COLUMNS][VECTORS];
};

inline Vector load(const float *from) {  // of any alignment
    Vector vector;
    std::memcpy(&vector, from, sizeof vector);
    return vector;
}

// The sums of a whole tile. The next column of A's part lies a_step numbers on; of B's part, element (k, j) lies at
// k * b_step + j * b_column.
inline __attribute__((always_inline)) Tile sums(long k, const float *a, long a_step, const float *b, long b_step,
                                                long b_column) {
    Tile tile = {};
    for (long p = 0; p < k; ++p, a += a_step, b += b_step) {
        Vector column[VECTORS];
        for (long v = 0; v < VECTORS; ++v) column[v] = load(a + v * LANES);
        for (long j = 0; j < COLUMNS; ++j)
            for (long v = 0; v < VECTORS; ++v) tile.sum[j][v] += column[v] * b[j * b_column];
    }
    return tile;
}

// `rows` and `columns`: the part of the tile that lies in D. With beta = 0 C is not read: it may hold NaN.
inline void store(const Tile &tile, long rows, long columns, float alpha, float beta, const float *c, float *d,
                  long ldc) {
    if (rows == ROWS && columns == COLUMNS) {
        for (long j = 0; j < COLUMNS; ++j)
            for (long v = 0; v < VECTORS; ++v) {
                Vector value = alpha * tile.sum[j][v];
                if (beta != 0) value += beta * load(c + j * ldc + v * LANES);
                std::memcpy(d + j * ldc + v * LANES, &value, sizeof value);
            }
        return;
    }
    for (long j = 0; j < columns; ++j) {
        float column[ROWS];
        std::memcpy(column, tile.sum[j], sizeof column);
        for (long i = 0; i < rows; ++i)
            d[i + j * ldc] = alpha * column[i] + (beta != 0 ? beta * c[i + j * ldc] : 0);
    }
}
