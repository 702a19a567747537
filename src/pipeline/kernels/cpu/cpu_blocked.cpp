// Rung 2: blocking. The loops of rung 1 over a block of A that stays in the cache while every column of B passes it.
//
// Reading guide
//   A block of A has MC rows and KC columns: 256 KiB, which fits a core's L2 cache. The MC numbers of D's column that it
//   is added to stay in L1. A is then read from memory once, and not once for each column of D.
//
// What is left: the inner loop still reads and writes D for each multiply-add: two loads and a store of a vector for one
// FMA, where a core can do two FMAs in the time of two loads and a store.
#include <algorithm>

constexpr long MC = 256, KC = 256;

extern "C" void cpu_blocked(long m, long n, long k, float alpha, const float *a, long lda, const float *b, long ldb,
                            float beta, const float *c, long ldc, float *d, int) {
    for (long j = 0; j < n; ++j)
        for (long i = 0; i < m; ++i) d[i + j * ldc] = beta != 0 ? beta * c[i + j * ldc] : 0;
    for (long p0 = 0; p0 < k; p0 += KC)
        for (long i0 = 0; i0 < m; i0 += MC) {
            const long rows = std::min(MC, m - i0), last = std::min(p0 + KC, k);
            for (long j = 0; j < n; ++j) {
                float *__restrict column = d + i0 + j * ldc;
                for (long p = p0; p < last; ++p) {
                    const float *__restrict from = a + i0 + p * lda;
                    const float factor = alpha * b[p + j * ldb];
                    for (long i = 0; i < rows; ++i) column[i] += factor * from[i];
                }
            }
        }
}
