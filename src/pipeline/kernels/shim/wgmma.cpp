// wgmma: 128 threads start a product of matrices in shared memory, go on, and wait for it later.
//
// A product leaves NaN in the sums when it starts; the numbers are read and multiplied when a warp waits for its group.
// Until all four warps have waited, nobody may write to the operands: who does it has to have seen that (barriers.cpp).
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"
#include "include/hopper.cuh"
#include "threads.h"

namespace shim {
namespace {

constexpr unsigned WARPGROUP = 128, WARPS = 4, ROWS = 64, DEPTH = 16, MOST_COLUMNS = 256;
constexpr unsigned STEPS = 1000;  // basic blocks that a product counts for: a kernel that never ends is stopped

// An operand as its descriptor says (PTX ISA, "Shared Memory Matrix Layout", the canonical layouts with the 128-byte
// swizzle).
struct Operand {
    uintptr_t begin;
    size_t leading, stride;  // bytes from 64 rows to the next; from eight lines to the next
    bool bfloat16;

    uintptr_t in_a(unsigned row, unsigned k) const  // MN-major: a line is 64 rows of one k
    {
        return swizzled(begin, row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2);
    }
    uintptr_t in_b(unsigned column, unsigned k) const  // K-major: a line is 64 of k of one column
    {
        return swizzled(begin, column / 8 * stride + column % 8 * 128 + k * 2);
    }
};

// What a product may still be reading.
struct Reading {
    uintptr_t begin, end;
    unsigned warpgroup, group, from;
};

struct Started {
    unsigned group;
    Operand a, b;
};

// 64×N sums of a warpgroup that products are on their way to.
struct Sums {
    float *of[WARPGROUP];
    unsigned columns, group, from;  // the newest product's
    unsigned fetched;         // a bit for each warp that has them
    std::vector<float> values;
    std::vector<Started> products;  // not multiplied yet, the oldest first

    // Sum `i` of a thread (PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16", accumulator D).
    float &value(unsigned thread, unsigned i)
    {
        const unsigned lane = thread % 32, warp = thread / 32;
        const unsigned row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        return values[row * columns + column];
    }
};

std::vector<Reading> readings;
std::vector<Sums> sums_of[32];  // by warpgroup

Operand operand(unsigned long long descriptor, bool bfloat16, unsigned from)
{
    if (descriptor >> 62 != 1)
        refuse("wgmma {pc:%x}: the shim knows descriptors with the 128-byte swizzle alone", from);
    if (descriptor >> 49 & 7) refuse("wgmma {pc:%x}: the shim knows descriptors with base offset 0 alone", from);
    const auto field = [&](unsigned bit) { return size_t(descriptor >> bit & 0x3fff) * 16; };
    return {shared_base() + field(0), field(16), field(32), bfloat16};
}

// One number of an operand, for all threads of the warpgroup. `known`: the last access of each thread (and copy) that they
// were found to have seen.
void check_number(uintptr_t address, const Stamp (&readers)[WARPGROUP], std::vector<Stamp> &known)
{
    Region &region = regions[0];
    const unsigned from = readers[0].from;
    if (address < region.begin || address + 2 > region.end) refuse("wgmma {pc:%x} reads beyond shared memory", from);
    const Stamp &writer = region.pieces[(address - region.begin) / region.granule].writer;
    if (!happened(writer, region, readers[0]))
        refuse("wgmma reads %s {pc:%x}, where nobody has written", place_in(region, address).c_str(), from);
    if (memcmp(&known[writer.thread], &writer, sizeof writer) == 0) return;
    for (const Stamp &reader : readers) {
        check_in_flight(writer, region, reader, address, "wgmma reads");
        check_race(writer, region, reader, address, "wgmma reads", "wrote");
        if (writer.thread < threads.size() && !fenced_since(writer, threads[reader.thread]))
            refuse("wgmma reads %s {pc:%x}, which thread %u wrote {pc:%x} without fence_async since",
                   place_in(region, address).c_str(), from, writer.thread, writer.from);
    }
    known[writer.thread] = writer;
}

template <class Where>
void read(unsigned lines, unsigned warpgroup, unsigned from, Where where)
{
    Stamp readers[WARPGROUP];
    for (unsigned i = 0; i < WARPGROUP; i++) readers[i] = stamp_of(threads[warpgroup * WARPGROUP + i], from);
    std::vector<Stamp> known(number_of_products(0));
    Reading reading{~uintptr_t(0), 0, warpgroup, running->groups_of_products, from};
    for (unsigned i = 0; i < lines; i++)
        for (unsigned k = 0; k < DEPTH; k++) {
            const uintptr_t address = where(i, k);
            check_number(address, readers, known);
            reading.begin = std::min(reading.begin, address), reading.end = std::max(reading.end, address + 2);
        }
    readings.push_back(reading);
}

// The sums that are on their way already, or else those that the threads hold now.
Sums &sums_for(const Product &product, unsigned warpgroup, void **asked)
{
    auto &all = sums_of[warpgroup];
    const auto found = std::find_if(all.begin(), all.end(), [&](const Sums &one) { return one.of[0] == product.sums; });
    if (found != all.end()) return *found;
    all.push_back({{}, product.columns, 0, 0, 0, std::vector<float>(ROWS * product.columns), {}});
    Sums &sums = all.back();
    for (unsigned thread = 0; thread < WARPGROUP; thread++) {
        sums.of[thread] = static_cast<const Product *>(asked[thread])->sums;
        for (unsigned i = 0; i < product.columns / 2; i++) sums.value(thread, i) = sums.of[thread][i];
        memset(sums.of[thread], 0xff, product.columns / 2 * sizeof(float));
    }
    return sums;
}

void start(void **asked)
{
    const auto &product = *static_cast<const Product *>(asked[0]);
    const unsigned warpgroup = running->number / WARPGROUP, from = offset_in_code(product.caller);
    begin_clocks();
    for (unsigned i = 0; i < WARPGROUP; i++) {
        const auto &other = *static_cast<const Product *>(asked[i]);
        if (other.a != product.a || other.b != product.b)
            refuse("wgmma {pc:%x}: its threads differ in their descriptors", from);
        if (!threads[warpgroup * WARPGROUP + i].fenced)
            refuse("wgmma {pc:%x} without wgmma_fence since its sums were last free to use", from);
    }
    const Operand a = operand(product.a, product.bfloat16, from), b = operand(product.b, product.bfloat16, from);
    read(ROWS, warpgroup, from, [&](unsigned row, unsigned k) { return a.in_a(row, k); });
    read(product.columns, warpgroup, from, [&](unsigned column, unsigned k) { return b.in_b(column, k); });
    Sums &sums = sums_for(product, warpgroup, asked);
    sums.group = running->groups_of_products, sums.from = from;
    sums.products.push_back({sums.group, a, b});
    steps_left -= std::min<uint64_t>(steps_left, STEPS);
}

float number_at(uintptr_t address, bool bfloat16)
{
    uint16_t bits;
    memcpy(&bits, reinterpret_cast<const void *>(address), sizeof bits);
    return bfloat16 ? value_of_bfloat16(bits) : value_of_half(bits);
}

// Exact products, and sums in float32 in the order of k.
void multiply(Sums &sums, const Operand &in_a, const Operand &in_b)
{
    static float a[ROWS][DEPTH], b[DEPTH][MOST_COLUMNS];
    for (unsigned k = 0; k < DEPTH; k++) {
        for (unsigned row = 0; row < ROWS; row++) a[row][k] = number_at(in_a.in_a(row, k), in_a.bfloat16);
        for (unsigned column = 0; column < sums.columns; column++)
            b[k][column] = number_at(in_b.in_b(column, k), in_b.bfloat16);
    }
    for (unsigned row = 0; row < ROWS; row++)
        for (unsigned k = 0; k < DEPTH; k++)
            for (unsigned column = 0; column < sums.columns; column += 8)  // eight at once: g++ makes vectors of them
                for (unsigned i = 0; i < 8; i++)
                    sums.values[row * sums.columns + column + i] += a[row][k] * b[k][column + i];
}

// A warp gets the sums of the groups that it has waited for.
void finish_products(void **asked)
{
    const unsigned newest = *static_cast<const unsigned *>(asked[0]), first = running->warp * 32;
    const unsigned warpgroup = running->number / WARPGROUP, bit = 1u << running->warp % WARPS;
    const unsigned groups = running->groups_of_products, done = groups > newest ? groups - newest : 0;
    begin_clocks();
    auto &all = sums_of[warpgroup];
    for (Sums &sums : all) {
        const auto still = [&](const Started &one) { return one.group >= done; };
        const auto first_of_those = std::find_if(sums.products.begin(), sums.products.end(), still);
        for (auto one = sums.products.begin(); one != first_of_those; one++) multiply(sums, one->a, one->b);
        sums.products.erase(sums.products.begin(), first_of_those);
        if (sums.group >= done || sums.fetched & bit) continue;
        for (unsigned thread = first % WARPGROUP; thread < first % WARPGROUP + 32; thread++)
            for (unsigned i = 0; i < sums.columns / 2; i++) sums.of[thread][i] = sums.value(thread, i);
        sums.fetched |= bit;
    }
    const auto by_all = [](const Sums &one) { return one.fetched == (1u << WARPS) - 1; };
    all.erase(std::remove_if(all.begin(), all.end(), by_all), all.end());
    for (unsigned i = first; i < first + 32; i++) {
        unsigned &seen = threads[i].seen[number_of_products(running->warp)];
        seen = std::max(seen, done);
        if (newest == 0) threads[i].fenced = false;
    }
}

}  // namespace

// Nobody writes what products read before all four warps that started them have waited.
void check_products(uintptr_t address, size_t bytes, unsigned from)
{
    const auto meets = [&](const Reading &one) { return one.begin < address + bytes && address < one.end; };
    for (const Reading &one : readings)
        for (unsigned warp = one.warpgroup * WARPS; meets(one) && warp < (one.warpgroup + 1) * WARPS; warp++)
            if (running->seen[number_of_products(warp)] <= one.group)
                refuse("writes %s {pc:%x}, which a wgmma {pc:%x} may still read: it has not seen that warp %u waited",
                       place_in(regions[0], std::max(address, one.begin)).c_str(), from, one.from, warp);
    readings.erase(std::remove_if(readings.begin(), readings.end(), meets), readings.end());
}

void wgmma_fence(int line)
{
    warp_collective("wgmma_fence", line, 0xffffffffu, false, nullptr, [](void **) {});
    running->fenced = true;
}

void wgmma_commit(int line)
{
    warp_collective("wgmma_commit", line, 0xffffffffu, false, nullptr, [](void **) {});
    running->groups_of_products++;
}

void hand_over_registers(int line) { warpgroup_collective("setmaxnreg", line, nullptr, [](void **) {}); }

void wgmma(Product &product, int line) { warpgroup_collective("wgmma", line, &product, start); }

void wgmma_wait(unsigned newest, int line)
{
    warp_collective("wgmma_wait", line, 0xffffffffu, false, &newest, finish_products);
}

void forget_products()
{
    readings.clear();
    for (auto &sums : sums_of) sums.clear();
}

std::string products_under_way()
{
    for (const auto &all : sums_of)
        if (!all.empty()) return "a wgmma " + in_code(all[0].from);
    return "";
}

}  // namespace shim
