// Rung 4: packing. Blocks of A and B are copied into the order in which the micro-kernel reads them.
//
// Reading guide
//   1. micro.h            the tile and its sums
//   2. pack_a, pack_b     a block as panels: ROWS rows of A (COLUMNS columns of B), k after k, number by number. What
//                         sticks out of the matrix is zero, so that a tile at the edge is computed like any other.
//   3. block()            the tiles of one block of D
//   4. product()          the loops around it. A panel of B (KC x COLUMNS) stays in L1, a block of A (MC x KC) in L2, a
//                         block of B (KC x NC) in L3; D is read and written once for each KC.
//
// The copies cost MC * KC + KC * NC moves for MC * KC * NC multiply-adds. In return every load is of the next numbers in
// memory, whatever the leading dimensions, and ragged sizes are computed like any other. Goto and van de Geijn, Anatomy of
// High-Performance Matrix Multiplication (2008), say how the blocks' sizes follow from the caches'; these are for an L2 of
// 512 KiB or more.
#include <algorithm>
#include <memory>
#include <new>

#include "micro.h"

constexpr long KC = 384, MC = ROWS * (256 / ROWS), NC = COLUMNS * (3072 / COLUMNS);

inline long up(long number, long unit) { return (number + unit - 1) / unit * unit; }

// The size of equal blocks of `total`, none larger than `most`: 513 is cut into 257 and 256, not into 384 and 129.
inline long even(long total, long most, long unit) {
    const long blocks = (total + most - 1) / most;
    return up((total + blocks - 1) / blocks, unit);
}

// Where a thread keeps its packed blocks; on cache lines, and kept from call to call.
struct Workspace {
    float *a = nullptr, *b = nullptr;
    Workspace() {
        a = static_cast<float *>(::operator new(MC * KC * sizeof(float), std::align_val_t(64)));
        b = static_cast<float *>(::operator new(KC * NC * sizeof(float), std::align_val_t(64)));
    }
    ~Workspace() {
        ::operator delete(a, std::align_val_t(64));
        ::operator delete(b, std::align_val_t(64));
    }
    Workspace(const Workspace &) = delete;
};

static void pack_a(long rows, long depth, const float *a, long lda, float *to) {
    for (long i = 0; i < rows; i += ROWS) {
        const long high = std::min(ROWS, rows - i);
        for (long p = 0; p < depth; ++p, to += ROWS) {
            const float *from = a + i + p * lda;
            if (high == ROWS) {
                std::memcpy(to, from, ROWS * sizeof(float));
            } else {
                for (long r = 0; r < ROWS; ++r) to[r] = r < high ? from[r] : 0;
            }
        }
    }
}

static void pack_b(long depth, long columns, const float *b, long ldb, float *to) {
    for (long j = 0; j < columns; j += COLUMNS, to += depth * COLUMNS) {
        const long wide = std::min(COLUMNS, columns - j);
        for (long p = 0; p < depth; ++p)
            for (long q = 0; q < COLUMNS; ++q) to[p * COLUMNS + q] = q < wide ? b[p + (j + q) * ldb] : 0;
    }
}

static void block(long rows, long columns, long depth, float alpha, const float *a, const float *b, float beta,
                  const float *c, long ldc, float *d) {
    for (long j = 0; j < columns; j += COLUMNS)
        for (long i = 0; i < rows; i += ROWS) {
            const Tile tile = sums(depth, a + i * depth, ROWS, b + j * depth, COLUMNS, 1);
            const long at = i + j * ldc;
            store(tile, std::min(ROWS, rows - i), std::min(COLUMNS, columns - j), alpha, beta, c + at, d + at, ldc);
        }
}

static void product(long m, long n, long k, float alpha, const float *a, long lda, const float *b, long ldb, float beta,
                    const float *c, long ldc, float *d, Workspace &packed) {
    const long wide = even(n, NC, COLUMNS), deep = even(k, KC, 1), high = even(m, MC, ROWS);
    for (long j = 0; j < n; j += wide)
        for (long p = 0; p < k; p += deep) {
            const long columns = std::min(wide, n - j), depth = std::min(deep, k - p);
            pack_b(depth, columns, b + p + j * ldb, ldb, packed.b);
            for (long i = 0; i < m; i += high) {
                const long rows = std::min(high, m - i), at = i + j * ldc;
                pack_a(rows, depth, a + i + p * lda, lda, packed.a);
                block(rows, columns, depth, alpha, packed.a, packed.b, p ? 1 : beta, (p ? d : c) + at, ldc, d + at);
            }
        }
}

extern "C" void cpu_packed(long m, long n, long k, float alpha, const float *a, long lda, const float *b, long ldb,
                           float beta, const float *c, long ldc, float *d, int) {
    static Workspace packed;
    product(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, d, packed);
}
