// What this processor can do at the most: the ceilings of the roofline, for numbers of 4 bytes (float) or 8 (double).
//
// Reading guide
//   1. fused   multiply-adds on registers alone: SUMS chains that do not wait for each other, enough to keep every FMA
//              unit of a core busy. No kernel can be faster.
//   2. stream  copy, scale, add and triad over arrays that no cache holds, as in STREAM: bytes that memory delivers.
//   3. spread  runs either on several threads at once, and times it from the first that begins to the last that ends:
//              starting threads and waking them is not part of it.
//   4. OnCore  keeps each of them on another core, in the caller's order (keep_on): a scheduler may leave two on one for
//              longer than this takes. Kernels that are timed are left to the scheduler, as whoever uses them would: it
//              moves them away from others.
#include <algorithm>
#include <chrono>
#include <vector>

#include "micro.h"
#include "team.h"
#ifdef __linux__
#include <sched.h>
#endif

constexpr long SUMS = VECTORS * COLUMNS, REGISTER = LANES * sizeof(float);
typedef double Doubles __attribute__((vector_size(REGISTER)));  // as many as fit where Vector holds floats

// Numbers of floating-point operations in one round, for the caller to count.
extern "C" long flop_of_a_round(int bytes) { return 2 * SUMS * (REGISTER / bytes); }

using Clock = std::chrono::steady_clock;

static std::vector<int> cores;  // that threads are kept on, in this order

extern "C" void keep_on(const int *order, int count) { cores.assign(order, order + count); }

#ifdef __linux__
// The cores that the calling thread may use; none where the system does not say.
struct Cores {
    cpu_set_t set;
    Cores() {
        if (sched_getaffinity(0, sizeof set, &set)) CPU_ZERO(&set);
    }
    void allow() const { sched_setaffinity(0, sizeof set, &set); }
};

// While it lives, the calling thread runs on one core: thread `number` on that number of `cores`.
class OnCore {
    const Cores before;

public:
    explicit OnCore(int number) {
        if (cores.empty() || !CPU_COUNT(&before.set)) return;
        Cores one;
        CPU_ZERO(&one.set);
        CPU_SET(cores[number % cores.size()], &one.set);
        one.allow();
    }
    ~OnCore() {
        if (CPU_COUNT(&before.set)) before.allow();
    }
};
#else
struct OnCore {
    explicit OnCore(int) {}
};
#endif

template <typename Work>
static double spread(int threads, Work work) {
    std::vector<Clock::time_point> began(threads), ended(threads);
    std::atomic<int> awaited{threads};
    team(threads).run([&](int number) {
        const OnCore held(number);
        --awaited;
        while (awaited) std::this_thread::yield();
        began[number] = Clock::now();
        work(number);
        ended[number] = Clock::now();
    });
    const auto all = *std::max_element(ended.begin(), ended.end()) - *std::min_element(began.begin(), began.end());
    return std::chrono::duration<double>(all).count();
}

static volatile float zero;  // as the compiler cannot know

// Each chain adds 1 in every round, sum * 1 + 1, which only a program that runs all rounds brings to their number: the
// sum of all chains. They begin anew after BLOCK rounds, as float counts to 2^24 only.
template <typename Number, typename Register>
static double chains(long rounds) {
    constexpr long WIDTH = REGISTER / sizeof(Number), BLOCK = 1 << 20;
    Register factor = {}, addend = {};
    for (long lane = 0; lane < WIDTH; ++lane) factor[lane] = addend[lane] = Number(1) + zero;
    double total = 0;
    for (long done = 0; done < rounds; done += BLOCK) {
        Register sum[COLUMNS][VECTORS] = {};
        for (long j = 0; j < COLUMNS; ++j)  // read anew for each: equal chains would be computed once
            for (long v = 0; v < VECTORS; ++v) sum[j][v] += Number(zero);
        const long until = std::min(rounds - done, BLOCK);
        for (long round = 0; round < until; ++round)
            for (long j = 0; j < COLUMNS; ++j)
                for (long v = 0; v < VECTORS; ++v) sum[j][v] = sum[j][v] * factor + addend;
        for (long j = 0; j < COLUMNS; ++j)
            for (long v = 0; v < VECTORS; ++v)
                for (long lane = 0; lane < WIDTH; ++lane) total += sum[j][v][lane];
    }
    return total;
}

// Seconds. `totals`: of each thread, the sum of its chains.
extern "C" double fused(long rounds, int bytes, double *totals, int threads) {
    return spread(threads, [=](int number) {
        totals[number] = bytes == 4 ? chains<float, Vector>(rounds) : chains<double, Doubles>(rounds);
    });
}

enum Kernel { FILL, COPY, SCALE, ADD, TRIAD };

template <typename Number>
static void part(int kernel, long from, long to, Number *x, const Number *y, const Number *z, Number factor) {
    switch (kernel) {
        case FILL:
            for (long i = from; i < to; ++i) x[i] = factor;
            break;
        case COPY:
            for (long i = from; i < to; ++i) x[i] = y[i];
            break;
        case SCALE:
            for (long i = from; i < to; ++i) x[i] = factor * y[i];
            break;
        case ADD:
            for (long i = from; i < to; ++i) x[i] = y[i] + z[i];
            break;
        case TRIAD:
            for (long i = from; i < to; ++i) x[i] = y[i] + factor * z[i];
            break;
    }
}

// Seconds. FILL is not part of STREAM: it gives each thread the memory that it first touches.
extern "C" double stream(int kernel, long length, int bytes, void *x, const void *y, const void *z, double factor,
                         int threads) {
    return spread(threads, [=](int number) {
        const long from = length * number / threads, to = length * (number + 1) / threads;
        if (bytes == 4)
            part<float>(kernel, from, to, (float *)x, (const float *)y, (const float *)z, float(factor));
        else
            part<double>(kernel, from, to, (double *)x, (const double *)y, (const double *)z, factor);
    });
}
