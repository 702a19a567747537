// Rung 0: the definition. One element of D after the other, each a sum over k: loops i, j, k.
//
// Reading guide
//   1. Element    what A and B hold; -DELEMENT=... chooses it. bfloat16 is the upper half of a float.
//   2. cpu_naive  element (i, j) of a matrix lies at i + j * ld (column by column, as BLAS has it).
//
// Why it is slow: along k the next number of A lies lda numbers further on, so each one takes a cache line (64 bytes, of
// which 4 are used); where lda is a power of two all of them compete for a few places in L1. Each addition waits for the
// one before it, so nothing is vectorised.
#include <cstdint>

struct Bfloat16 {
    uint16_t bits;
    operator float() const {
        union { uint32_t bits; float value; } wide = {uint32_t(bits) << 16};
        return wide.value;
    }
};

#ifndef ELEMENT
#define ELEMENT float
#define SUM float
#endif

extern "C" void cpu_naive(long m, long n, long k, SUM alpha, const ELEMENT *a, long lda, const ELEMENT *b, long ldb,
                          SUM beta, const SUM *c, long ldc, SUM *d, int) {
    for (long i = 0; i < m; ++i)
        for (long j = 0; j < n; ++j) {
            SUM sum = 0;
            for (long p = 0; p < k; ++p) sum += SUM(a[i + p * lda]) * SUM(b[p + j * ldb]);
            d[i + j * ldc] = alpha * sum + (beta != 0 ? beta * c[i + j * ldc] : SUM(0));
        }
}
