// What this processor can do at the most: the two ceilings of the roofline.
//
// Reading guide
//   1. fused   multiply-adds on registers alone: SUMS chains that do not wait for each other, enough to keep every FMA
//              unit of a core busy. No kernel can be faster.
//   2. triad   x = y + 3 * z over arrays that no cache holds (STREAM's triad): bytes that memory delivers.
//   3. spread  runs either on several threads at once.
#include <thread>
#include <vector>

#include "micro.h"

constexpr long SUMS = VECTORS * COLUMNS;

// Numbers of floating-point operations in one round, for the caller to count.
extern "C" long flop_of_a_round() { return 2 * SUMS * LANES; }

template <typename Work>
static void spread(int threads, Work work) {
    std::vector<std::thread> others;
    for (int number = 1; number < threads; ++number) others.emplace_back(work, number);
    work(0);
    for (std::thread &other : others) other.join();
}

static volatile float kept;  // zero, as the compiler cannot know

static void chains(long rounds) {
    Tile tile = {};
    Vector factor = {}, addend = {};
    for (long lane = 0; lane < LANES; ++lane) factor[lane] = 0.5f + kept, addend[lane] = 1.0f + kept;
    for (long j = 0; j < COLUMNS; ++j)  // read anew for each: equal chains would be computed once
        for (long v = 0; v < VECTORS; ++v) tile.sum[j][v] += kept;
    for (long round = 0; round < rounds; ++round)
        for (long j = 0; j < COLUMNS; ++j)
            for (long v = 0; v < VECTORS; ++v) tile.sum[j][v] = tile.sum[j][v] * factor + addend;
    Vector all = {};
    for (long j = 0; j < COLUMNS; ++j)
        for (long v = 0; v < VECTORS; ++v) all += tile.sum[j][v];
    float total = 0;
    for (long lane = 0; lane < LANES; ++lane) total += all[lane];
    kept = total * 0;
}

extern "C" void fused(long rounds, int threads) {
    spread(threads, [=](int) { chains(rounds); });
}

extern "C" void triad(long length, float *x, const float *y, const float *z, int threads) {
    spread(threads, [=](int number) {
        const long from = length * number / threads, to = length * (number + 1) / threads;
        for (long i = from; i < to; ++i) x[i] = y[i] + 3 * z[i];
    });
}
