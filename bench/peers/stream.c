/* STREAM's triad and chains of multiply-adds, written without a look at the pipeline's: OpenMP, and intrinsics.
 *
 *   cc -O3 -march=native -fopenmp stream.c -o stream && ./stream <bytes of an array> <threads>
 *
 * Prints the best of REPEATS and of BURSTS as JSON, triad in bytes a second of float64, multiply-adds in FLOP a second.
 */
#define _DEFAULT_SOURCE
#include <immintrin.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define REPEATS 5 /* as many as ours has */
#define BURSTS 50
#define CHAINS 12
#define PAGE (2L << 20)
#define STEPS 200000L /* a burst is shorter than the slice that a scheduler gives to another process */

#if defined(__AVX512F__)
#define WIDE 16
typedef __m512 floats;
typedef __m512d doubles;
#define FLOATS(x) _mm512_set1_ps(x)
#define DOUBLES(x) _mm512_set1_pd(x)
#define FMA_FLOATS _mm512_fmadd_ps
#define FMA_DOUBLES _mm512_fmadd_pd
#elif defined(__FMA__)
#define WIDE 8
typedef __m256 floats;
typedef __m256d doubles;
#define FLOATS(x) _mm256_set1_ps(x)
#define DOUBLES(x) _mm256_set1_pd(x)
#define FMA_FLOATS _mm256_fmadd_ps
#define FMA_DOUBLES _mm256_fmadd_pd
#else
#error "needs a processor with FMA"
#endif

/* In large pages, as NumPy asks Linux for them: with small ones the processor waits for its table of pages. */
static double *array(long length) {
    size_t bytes = (length * sizeof(double) + PAGE - 1) / PAGE * PAGE;
    double *made = aligned_alloc(PAGE, bytes);
    if (made) madvise(made, bytes, MADV_HUGEPAGE);
    return made;
}

static double triad(long length, double *a, const double *b, const double *c) {
    double best = 1e30;
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
        double began = omp_get_wtime();
#pragma omp parallel for schedule(static)
        for (long i = 0; i < length; ++i) a[i] = b[i] + 3.0 * c[i];
        double took = omp_get_wtime() - began;
        if (took < best) best = took;
    }
    return 3.0 * sizeof(double) * length / best;
}

/* x = x * 0.999 + 0.001 in CHAINS registers; what they come to is added up, so that no chain can be left out. */
#define MULTIPLY_ADDS(name, vector, number, set, fma, lanes)                              \
    static double name(int threads, double *sum) {                                        \
        double best = 1e30;                                                               \
        for (int repeat = 0; repeat < BURSTS; ++repeat) {                                 \
            double total = 0, began = omp_get_wtime();                                    \
            _Pragma("omp parallel reduction(+ : total)") {                                \
                vector x[CHAINS], factor = set(0.999), addend = set(0.001);               \
                for (int i = 0; i < CHAINS; ++i) x[i] = set((number)i);                   \
                for (long step = 0; step < STEPS; ++step)                                 \
                    for (int i = 0; i < CHAINS; ++i) x[i] = fma(x[i], factor, addend);    \
                for (int i = 0; i < CHAINS; ++i) total += ((number *)&x[i])[0];           \
            }                                                                             \
            double took = omp_get_wtime() - began;                                        \
            if (took < best) best = took;                                                 \
            *sum = total;                                                                 \
        }                                                                                 \
        return 2.0 * CHAINS * (lanes) * STEPS * threads / best;                           \
    }

MULTIPLY_ADDS(fma_float32, floats, float, FLOATS, FMA_FLOATS, WIDE)
MULTIPLY_ADDS(fma_float64, doubles, double, DOUBLES, FMA_DOUBLES, WIDE / 2)

int main(int count, char **words) {
    if (count != 3) return fprintf(stderr, "give the bytes of an array and the threads\n"), 2;
    long length = atol(words[1]) / (long)sizeof(double);
    int threads = atoi(words[2]);
    omp_set_num_threads(threads);
    double *a = array(length), *b = array(length), *c = array(length);
    if (!a || !b || !c) return fprintf(stderr, "not enough memory\n"), 2;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < length; ++i) a[i] = 0, b[i] = 1, c[i] = 2;
    double memory = triad(length, a, b, c);
    for (long i = 0; i < length; ++i)
        if (a[i] != 7) return fprintf(stderr, "triad is wrong at %ld\n", i), 1;
    double sum32, sum64, narrow = fma_float32(threads, &sum32), wide = fma_float64(threads, &sum64);
    double expected = (double)CHAINS * threads; /* every chain goes to 1 */
    if (!(sum32 > 0.99 * expected && sum32 < 1.01 * expected && sum64 > 0.99 * expected && sum64 < 1.01 * expected))
        return fprintf(stderr, "multiply-adds are wrong: %g, %g, not %g\n", sum32, sum64, expected), 1;
    printf("{\"triad\": %.6g, \"fma_float32\": %.6g, \"fma_float64\": %.6g}\n", memory, narrow, wide);
    return 0;
}
