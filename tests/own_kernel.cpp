// A kernel of a user's: three loops, an element after the other.
extern "C" void gemm(long m, long n, long k, float alpha, const float *a, long lda, const float *b, long ldb,
                     float beta, const float *c, long ldc, float *d, int) {
    for (long j = 0; j < n; ++j)
        for (long i = 0; i < m; ++i) {
            float sum = 0;
            for (long p = 0; p < k; ++p) sum += a[i + p * lda] * b[p + j * ldb];
            d[i + j * ldc] = alpha * sum + (beta != 0 ? beta * c[i + j * ldc] : 0);
        }
}
