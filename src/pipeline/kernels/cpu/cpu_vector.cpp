// Rung 3: registers. D is computed tile by tile, and a tile's sums never leave the registers while it runs along K.
//
// Reading guide
//   1. micro.h     the tile and its sums
//   2. edge()      tiles that stick out of D, element by element: a whole tile would read beyond A and B
//   3. cpu_vector  K in blocks of KC, so that the part of A that a tile reads again for the next columns is in a cache
//
// What is left: the elements of edge() take more time than whole tiles, at N = 512 more than half of all. And a tile reads
// ROWS numbers of a column of A, then jumps lda numbers: where lda is a power of two these pieces compete for a few places
// in L1.
#include <algorithm>

#include "micro.h"

constexpr long KC = 256, MC = 8 * ROWS;

static void edge(long rows, long columns, long k, float alpha, const float *a, long lda, const float *b, long ldb,
                 float beta, const float *c, long ldc, float *d) {
    for (long j = 0; j < columns; ++j)
        for (long i = 0; i < rows; ++i) {
            float sum = 0;
            for (long p = 0; p < k; ++p) sum += a[i + p * lda] * b[p + j * ldb];
            d[i + j * ldc] = alpha * sum + (beta != 0 ? beta * c[i + j * ldc] : 0);
        }
}

extern "C" void cpu_vector(long m, long n, long k, float alpha, const float *a, long lda, const float *b, long ldb,
                           float beta, const float *c, long ldc, float *d, int) {
    for (long p0 = 0; p0 < k; p0 += KC) {
        const long depth = std::min(KC, k - p0);
        const float kept = p0 ? 1 : beta;  // later blocks are added to what is in D
        const float *added = p0 ? d : c;
        for (long i0 = 0; i0 < m; i0 += MC)
            for (long j = 0; j < n; j += COLUMNS)
                for (long i = i0; i < std::min(i0 + MC, m); i += ROWS) {
                    const long rows = std::min(ROWS, m - i), columns = std::min(COLUMNS, n - j), at = i + j * ldc;
                    const float *from_a = a + i + p0 * lda, *from_b = b + p0 + j * ldb;
                    if (rows == ROWS && columns == COLUMNS) {
                        const Tile tile = sums(depth, from_a, lda, from_b, 1, ldb);
                        store(tile, rows, columns, alpha, kept, added + at, d + at, ldc);
                    } else {
                        edge(rows, columns, depth, alpha, from_a, lda, from_b, ldb, kept, added + at, ldc, d + at);
                    }
                }
    }
}
