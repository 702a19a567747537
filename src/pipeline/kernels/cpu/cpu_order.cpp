// Rung 1: the order of the loops. j, k, i in place of i, j, k; nothing else.
//
// Reading guide
//   Inside, a column of A times one number of B is added to a column of D: both lie number by number in memory. All 16
//   floats of a cache line are used, and since no addition waits for another the compiler vectorises the loop.
//
// What is left: for each k a column of D is read and written again (2 of 3 accesses), and all of A is read for each
// column of D, from whichever cache it fits into.

extern "C" void cpu_order(long m, long n, long k, float alpha, const float *a, long lda, const float *b, long ldb,
                          float beta, const float *c, long ldc, float *d, int) {
    for (long j = 0; j < n; ++j) {
        float *__restrict column = d + j * ldc;
        for (long i = 0; i < m; ++i) column[i] = beta != 0 ? beta * c[i + j * ldc] : 0;
        for (long p = 0; p < k; ++p) {
            const float *__restrict from = a + p * lda;
            const float factor = alpha * b[p + j * ldb];
            for (long i = 0; i < m; ++i) column[i] += factor * from[i];
        }
    }
}
