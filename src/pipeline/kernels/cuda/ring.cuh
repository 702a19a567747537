// A ring of stages in shared memory (wgmma, wgmma_persistent): some warps of a block fetch slices of A and B into it,
// others multiply them, and only barriers tell the ones how far the others are.
//
// Reading guide
//   1. A slice is 64 of K. `Stage` holds one: of A M×64, of B 64×N. Both lie in lines of 128 bytes, 64 numbers of a
//      column: a column of A is cut into boxes of 64 rows, a line for each k; B has a line for each of its columns.
//   2. Eight lines are eight times the same banks. So that eight numbers below each other can be read at once, the
//      eight chunks of 16 bytes in line i are swapped: chunk c lies at place c ^ (i % 8). TMA writes them so, and wgmma
//      reads them so (the 128-byte swizzle); `swizzled` says it for the copies that threads make.
//   3. `full` of a stage is over when a slice has arrived there, `empty` when it has been multiplied. Who goes around
//      the ring for the second time waits for the other parity: `Turn`.
//   4. fetch: waits for an empty stage, announces the bytes, and starts a copy for each box. TMA finds the addresses,
//      fills up what sticks out of the matrix with zeros, and needs one thread.
//   5. multiply: waits for a full stage, and starts the products of its 64 of K. They are still running when the next
//      stage is waited for; `wgmma_wait<1>` says that those of the stage before are done, so that it may be filled
//      again.
//   6. TMA needs columns that begin at multiples of 16 bytes. Other matrices are copied number by number: right, but
//      slow.
#pragma once
#include <hopper.cuh>

#include "gemm.cuh"
#include "place.cuh"

constexpr int BLOCK_K = 64;
constexpr int LINE = 64;    // numbers in a line of 128 bytes
constexpr int STEP_K = 16;  // of K in one wgmma
constexpr int LANES = 32;   // of a warp; `warpSize` is not a constant, and dividing by it in a loop costs

template <int M, int N>
struct Stage {
    static constexpr int BOXES = M / LINE;
    Element a[BOXES][BLOCK_K * LINE];
    Element b[N * LINE];
};

template <int M, int N, int STAGES>
struct Ring {
    Stage<M, N> stages[STAGES];
    Barrier full[STAGES], empty[STAGES];
};

// Which stage is next, and the parity of how often the ring has been gone around.
template <int STAGES>
struct Turn {
    int stage = 0;
    unsigned parity = 0;

    __device__ void next()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// A or B, for TMA and for threads.
struct Operand {
    const TensorMap &map;
    const Element *matrix;
    int leading, rows, columns;
};

// Whether TMA can read a matrix.
__device__ bool suits_tma(const Element *matrix, int leading)
{
    return leading % CHUNK == 0 && reinterpret_cast<size_t>(matrix) % 16 == 0;
}

// Where number `i` of a line lies.
__device__ int swizzled(int line, int i) { return line * LINE + ((i / CHUNK) ^ (line % 8)) * CHUNK + i % CHUNK; }

// Copies a box of LINES columns, as TMA would: it begins at row `first` and column `second` of the matrix.
template <int LINES, int THREADS>
__device__ void copy_numbers(Element *box, const Operand &from, int first, int second, int thread)
{
    const int rows = from.rows - first, columns = from.columns - second;
    #pragma unroll 1  // who fetches has few registers
    for (int i = thread; i < LINES * LINE; i += THREADS) {
        const int row = i % LINE, column = i / LINE;
        const bool inside = row < rows && column < columns;
        const size_t at = first + row + (second + column) * size_t(from.leading);
        box[swizzled(column, row)] = inside ? from.matrix[at] : Element(0);
    }
}

// Prepares the barriers: `fillers` threads say that a stage is full, `readers` that it is empty.
template <int M, int N, int STAGES>
__device__ void begin(Ring<M, N, STAGES> &ring, int fillers, int readers)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(ring.full[i], fillers);
            barrier_init(ring.empty[i], readers);
        }
        fence_async();  // TMA sees them, too
    }
    __syncthreads();  // and all threads do
}

// Fetches the slices that a block of D needs, by THREADS threads, of which TMA takes one.
template <int THREADS, int M, int N, int STAGES>
__device__ __forceinline__ void fetch(Ring<M, N, STAGES> &ring, Turn<STAGES> &turn, const Operand &a, const Operand &b,
                                      bool by_tma, Place block, int slices)
{
    const int thread = threadIdx.x % THREADS;
    if (by_tma && thread > 0) return;
    for (int slice = 0; slice < slices; slice++, turn.next()) {
        const int k = slice * BLOCK_K;
        Stage<M, N> &stage = ring.stages[turn.stage];
        Barrier &full = ring.full[turn.stage];
        barrier_wait(ring.empty[turn.stage], turn.parity ^ 1);
        if (by_tma) {
            barrier_expect(full, sizeof stage);
            for (int i = 0; i < stage.BOXES; i++) copy_box(stage.a[i], a.map, full, block.row + i * LINE, k);
            copy_box(stage.b, b.map, full, k, block.column);
        } else {
            #pragma unroll 1
            for (int i = 0; i < stage.BOXES; i++)
                copy_numbers<BLOCK_K, THREADS>(stage.a[i], a, block.row + i * LINE, k, thread);
            copy_numbers<N, THREADS>(stage.b, b, k, block.column, thread);
            fence_async();  // wgmma sees what was written
            barrier_arrive(full);
        }
    }
}

// What wgmma knows of an operand in shared memory (PTX ISA, "Matrix Descriptor Format"): its address, the 128-byte
// swizzle, and how far eight lines are from the next eight. Both are in units of 16 bytes, so that adding 1 leads CHUNK
// numbers further.
__device__ __forceinline__ unsigned long long descriptor(const Element *operand)
{
    constexpr unsigned long long SWIZZLE_128 = 1ull << 62, EIGHT_LINES = 8 * 128;
    return SWIZZLE_128 | EIGHT_LINES / 16 << 32 | (shared_address(operand) & 0x3ffff) / 16;
}

// One lane of each warp says that the warp has finished with a stage.
template <int M, int N, int STAGES>
__device__ __forceinline__ void release(Ring<M, N, STAGES> &ring, int stage)
{
    if (threadIdx.x % LANES == 0) barrier_arrive(ring.empty[stage]);
}

// A warpgroup multiplies the slices of a block of D: BOXES·64 of its rows, from box `first` on. Returns the last stage,
// which is not released yet.
template <int BOXES, int M, int N, int STAGES>
__device__ __forceinline__ int multiply(float (&sums)[BOXES][N / 2], Ring<M, N, STAGES> &ring, Turn<STAGES> &turn,
                                        int first, int slices)
{
    #pragma unroll
    for (auto &of_box : sums) {
        #pragma unroll
        for (float &sum : of_box) sum = 0;
        wgmma_keep(of_box);  // zero before the loop, not in it
    }
    int last = 0;
    for (int slice = 0; slice < slices; slice++, turn.next()) {
        const Stage<M, N> &stage = ring.stages[turn.stage];
        const auto a = descriptor(stage.a[first]), b = descriptor(stage.b);
        barrier_wait(ring.full[turn.stage], turn.parity);
        wgmma_fence();
        #pragma unroll
        for (int k = 0; k < BLOCK_K; k += STEP_K)
            #pragma unroll
            for (int box = 0; box < BOXES; box++)
                wgmma<N>(sums[box], a + (box * BLOCK_K + k) * LINE / CHUNK, b + k / CHUNK);
        wgmma_commit();
        wgmma_wait<1>();
        if (slice > 0) release(ring, last);
        last = turn.stage;
    }
    wgmma_wait<0>();
    #pragma unroll
    for (auto &of_box : sums) wgmma_keep(of_box);
    return last;
}

// Writes alpha·sums + beta·C to BOXES·64 rows of D, of which the first `rows` and `columns` lie in the matrix. With
// beta = 0 C is not read. Of every eight columns a thread holds two neighbours in one row, and the two that lie eight
// rows below (PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16", accumulator D).
template <int BOXES, int COUNT>
__device__ __forceinline__ void store_sums(const float (&sums)[BOXES][COUNT], const Sum *C, Sum *D, int leading,
                                           int rows, int columns, Sum alpha, Sum beta)
{
    // By warpSize: what follows from constants would be computed before the sums, and find no registers while they are
    // there.
    const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize % 4, top = warp * 16 + lane / 4;
    int left = lane % 4 * 2;
    if (beta == 0 && rows >= BOXES * LINE && columns >= 2 * COUNT) {  // most tiles: no bounds check
        int apart = leading;
        not_before(apart);  // or the compiler computes the addresses of both branches here, and runs out of registers
        Sum *place = D + top + left * size_t(apart);
        #pragma unroll
        for (int group = 0; group < COUNT; group += 4, place += 8 * size_t(apart))
            #pragma unroll
            for (int i = 0; i < 4 * BOXES; i++)
                place[i / 4 * LINE + i / 2 % 2 * 8 + i % 2 * size_t(apart)] = alpha * sums[i / 4][group + i % 4];
        return;
    }
    size_t first = top + left * size_t(leading);
    #pragma unroll
    for (int group = 0; group < COUNT; group += 4, left += 8, first += 8 * size_t(leading))
        #pragma unroll
        for (int i = 0; i < 4 * BOXES; i++) {
            const int below = i / 4 * LINE + i / 2 % 2 * 8, row = top + below, column = left + i % 2;
            if (row < rows && column < columns) {
                const size_t at = first + below + i % 2 * size_t(leading);
                D[at] = alpha * sums[i / 4][group + i % 4] + (beta != 0 ? beta * C[at] : Sum(0));
            }
        }
}
