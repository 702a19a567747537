// Rung 5: threads. D is cut into a part for each thread, which is a product by itself.
//
// Reading guide
//   1. cpu_packed.cpp  the product of one thread
//   2. team.h          the threads, which are started once
//   3. parts()         how D is cut: rows x columns of parts, whichever has the fewest numbers of A and B to pack
//   4. cpu_threads     gives each thread its part
//
// The threads share nothing that is written and never wait for each other. What that costs: a number of A is packed once
// for each column of parts, one of B once for each row. Edges between parts lie on tiles.
#include <memory>
#include <vector>

#include "cpu_packed.cpp"
#include "team.h"

struct Parts {
    long down, across;
};

static Parts parts(long m, long n, long threads) {
    Parts best = {threads, 1};
    for (long down = 1; down <= threads; ++down) {
        if (threads % down) continue;
        const long across = threads / down;
        if (n * down + m * across < n * best.down + m * best.across) best = {down, across};
    }
    return best;
}

extern "C" void cpu_threads(long m, long n, long k, float alpha, const float *a, long lda, const float *b, long ldb,
                            float beta, const float *c, long ldc, float *d, int threads) {
    static std::vector<std::unique_ptr<Workspace>> packed;
    while (long(packed.size()) < threads) packed.push_back(std::make_unique<Workspace>());
    const Parts cut = parts(m, n, threads);
    const long high = up((m + cut.down - 1) / cut.down, ROWS), wide = up((n + cut.across - 1) / cut.across, COLUMNS);
    auto part = [&](int number) {
        const long i = number % cut.down * high, j = number / cut.down * wide;
        if (i >= m || j >= n) return;
        product(std::min(high, m - i), std::min(wide, n - j), k, alpha, a + i, lda, b + j * ldb, ldb, beta,
                c + i + j * ldc, ldc, d + i + j * ldc, *packed[number]);
    };
    team(threads).run(part);
}
