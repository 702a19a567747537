// What this processor can do at the most: the two ceilings of the roofline.
//
// Reading guide
//   1. fused   multiply-adds on registers alone: SUMS chains that do not wait for each other, enough to keep every FMA
//              unit of a core busy. No kernel can be faster.
//   2. triad   x = y + 3 * z over arrays that no cache holds (STREAM's triad): bytes that memory delivers.
//   3. spread  runs either on several threads at once, and times it from the first that begins to the last that ends:
//              starting threads and waking them is not part of it.
#include <algorithm>
#include <chrono>
#include <vector>

#include "micro.h"
#include "team.h"

constexpr long SUMS = VECTORS * COLUMNS;

// Numbers of floating-point operations in one round, for the caller to count.
extern "C" long flop_of_a_round() { return 2 * SUMS * LANES; }

using Clock = std::chrono::steady_clock;

template <typename Work>
static double spread(int threads, Work work) {
    std::vector<Clock::time_point> began(threads), ended(threads);
    std::atomic<int> awaited{threads};
    team(threads).run([&](int number) {
        --awaited;
        while (awaited) std::this_thread::yield();
        began[number] = Clock::now();
        work(number);
        ended[number] = Clock::now();
    });
    const auto all = *std::max_element(ended.begin(), ended.end()) - *std::min_element(began.begin(), began.end());
    return std::chrono::duration<double>(all).count();
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

// Seconds.
extern "C" double fused(long rounds, int threads) {
    return spread(threads, [=](int) { chains(rounds); });
}

extern "C" double triad(long length, float *x, const float *y, const float *z, int threads) {
    return spread(threads, [=](int number) {
        const long from = length * number / threads, to = length * (number + 1) / threads;
        for (long i = from; i < to; ++i) x[i] = y[i] + 3 * z[i];
    });
}
