// mbarriers, and the copies by TMA that they count.
//
// Who has seen what. An mbarrier orders some threads behind some others, so counting the block's barriers is not
// enough. Each thread has, for every other one, how many of its arrivals it has seen (a vector clock): arriving adds
// what the thread has seen to the barrier's phase, and waiting for the phase takes it over. Others count as threads
// do: the copies that signal a barrier (by its phases), the products of a warp (by their groups, in wgmma.cpp), and
// the fences of a thread.
//
// A copy fills its box with NaN and locks it. It arrives when somebody waits for the barrier and nothing else is
// missing.
#include <map>

#include "include/hopper.cuh"
#include "threads.h"

namespace shim {

// A copy that TMA has started.
struct Box {
    TensorMap map;
    uintptr_t to;
    int first, second;
    unsigned from;
    size_t bytes() const { return size_t(map.box_rows) * map.box_columns * 2; }
};

// An mbarrier.
struct Phases {
    unsigned arrivals, pending, phase, number;
    size_t expected;          // bytes that were announced in this phase
    Stamp made;
    std::vector<Box> copies;  // on their way
    std::vector<unsigned> brought, passed;  // what the arrivals of this phase have seen, and those of the phases before
};

namespace {

constexpr unsigned MOST_BARRIERS = 64;

std::map<uintptr_t, Phases> phases;  // by address

unsigned beyond_threads() { return (threads.size() + 31) / 32 * 32; }
unsigned number_of_copies(const Phases &of) { return beyond_threads() + of.number; }
unsigned number_of_products(unsigned warp) { return beyond_threads() + MOST_BARRIERS + warp; }
unsigned number_of_fences(unsigned thread) { return number_of_products(warps.size()) + thread; }

void begin_clocks()
{
    if (threads[0].seen.empty())
        for (Thread &thread : threads) thread.seen.assign(number_of_fences(threads.size()), 0);
}

// Whether `reader` has seen that who made an access has called fence_async since.
bool fenced_since(const Stamp &before, const Thread &reader)
{
    return reader.seen[number_of_fences(before.thread)] > before.fences;
}

// The lowest address that instructions call 0: shared memory begins above, where the swizzle begins anew.
uintptr_t shared_base() { return regions[0].begin & ~uintptr_t(1023); }

// Where byte `offset` of a box lies. The 128-byte swizzle: bits 4 to 6 of an address, exclusive-or bits 7 to 9.
uintptr_t swizzled(uintptr_t begin, size_t offset)
{
    const uintptr_t place = begin - shared_base() + offset;
    return shared_base() + (place ^ (place >> 7 & 7) << 4);
}

Phases &phases_of(Barrier &barrier, const void *caller)
{
    access(&barrier, sizeof barrier, false, caller);
    const auto found = phases.find(reinterpret_cast<uintptr_t>(&barrier));
    if (found == phases.end())
        refuse("{pc:%zx} uses as a barrier what barrier_init has not made", offset_in_code(caller));
    return found->second;
}

void end_phase(Phases &one)
{
    one.phase++, one.pending = one.arrivals, one.expected = 0;
    join(one.passed, one.brought);
    one.brought.clear();
}

size_t bytes_on_their_way(const Phases &one)
{
    size_t bytes = 0;
    for (const Box &box : one.copies) bytes += box.bytes();
    return bytes;
}

bool is_over(const Phases &one, unsigned parity) { return one.phase % 2 != parity % 2; }

// Whether nothing is missing but what is on its way.
bool can_deliver(const Phases &one)
{
    return one.pending == 0 && !one.copies.empty() && bytes_on_their_way(one) >= one.expected;
}

bool lies_in(const TensorMap &map, int64_t row, int64_t column)
{
    return row >= 0 && column >= 0 && uint64_t(row) < map.rows && uint64_t(column) < map.columns;
}

void copy(const Box &box)
{
    size_t offset = 0;
    for (int64_t column = box.second; column < int64_t(box.second) + box.map.box_columns; column++)
        for (int64_t row = box.first; row < int64_t(box.first) + box.map.box_rows; row++, offset += 2) {
            uint16_t number = 0;
            if (lies_in(box.map, row, column)) memcpy(&number, box.map.base + column * box.map.stride + row * 2, 2);
            memcpy(reinterpret_cast<void *>(swizzled(box.to, offset)), &number, 2);
        }
    for_pieces(regions[0], box.to, box.bytes(), [](Piece &piece, uintptr_t) { piece.writer.in_flight = false; });
}

void deliver(Phases &one)
{
    if (bytes_on_their_way(one) > one.expected)
        refuse("%zu bytes arrive at a barrier where %zu were announced", bytes_on_their_way(one), one.expected);
    for (const Box &box : one.copies) copy(box);
    one.copies.clear();
    const unsigned copies = number_of_copies(one);
    one.brought.resize(std::max<size_t>(one.brought.size(), copies + 1));
    one.brought[copies] = one.phase + 1;
    end_phase(one);
}

// The box's numbers that lie in the matrix, as reads of the kernel.
void check_source(const Box &box, const void *caller)
{
    const TensorMap &map = box.map;
    const int64_t top = std::max(0, box.first), left = std::max(0, box.second);
    const int64_t bottom = std::min<int64_t>(int64_t(box.first) + map.box_rows, map.rows);
    const int64_t right = std::min<int64_t>(int64_t(box.second) + map.box_columns, map.columns);
    for (int64_t column = left; top < bottom && column < right; column++)
        access(map.base + column * map.stride + top * 2, (bottom - top) * 2, false, caller);
}

Stamp stamp_of_copy(const Phases &one, unsigned from)
{
    Stamp stamp = stamp_of(*running, from, true);
    stamp.thread = number_of_copies(one), stamp.clock = one.phase;
    stamp.barriers = stamp.warp_barriers = ~0u;  // of which none orders it
    return stamp;
}

}  // namespace

unsigned shared_address(const void *place)
{
    const auto address = reinterpret_cast<uintptr_t>(place);
    if (region_of(address) != &regions[0]) refuse("takes the address in shared memory of what does not lie there");
    return address - shared_base();
}

void barrier_init(Barrier &barrier, unsigned arrivals, const void *caller)
{
    access(&barrier, sizeof barrier, true, caller);
    const unsigned address = shared_address(&barrier), from = offset_in_code(caller), number = phases.size();
    if (address % sizeof barrier) refuse("{pc:%x} makes a barrier at %u, which is not a multiple of 8", from, address);
    if (arrivals == 0) refuse("{pc:%x} makes a barrier that waits for nobody", from);
    if (number == MOST_BARRIERS) refuse("{pc:%x}: the shim has room for %u barriers", from, MOST_BARRIERS);
    begin_clocks();
    const Phases made{arrivals, arrivals, 0, number, 0, stamp_of(*running, from), {}, {}, {}};
    if (!phases.emplace(reinterpret_cast<uintptr_t>(&barrier), made).second)
        refuse("{pc:%x} makes a barrier twice", from);
}

void barrier_arrive(Barrier &barrier, unsigned bytes, const void *caller)
{
    Phases &one = phases_of(barrier, caller);
    if (one.pending == 0)
        refuse("{pc:%zx} arrives at a barrier that waits for nobody any more", offset_in_code(caller));
    one.expected += bytes;
    join(one.brought, running->seen);
    one.brought[running->number] = ++running->clock;
    if (--one.pending == 0 && one.expected == 0 && one.copies.empty()) end_phase(one);
}

void barrier_wait(Barrier &barrier, unsigned parity, int line, const void *caller)
{
    Phases &one = phases_of(barrier, caller);
    running->call = "barrier_wait", running->line = line;
    running->waits_for = &one, running->parity = parity;
    while (!is_over(one, parity)) {
        if (can_deliver(one)) deliver(one);
        else suspend(State::in_phase);
    }
    join(running->seen, one.passed);
}

bool may_go_on(const Thread &thread)
{
    return is_over(*thread.waits_for, thread.parity) || can_deliver(*thread.waits_for);
}

void fence_async()
{
    begin_clocks();
    running->seen[number_of_fences(running->number)] = ++running->fences;
}

void forget_barriers() { phases.clear(); }

std::string copies_under_way()
{
    for (const auto &[address, one] : phases)
        if (!one.copies.empty()) return "a copy by TMA " + in_code(one.copies[0].from);
    return "";
}

void copy_box(void *to, const TensorMap &map, Barrier &barrier, int first, int second, const void *caller)
{
    const unsigned from = offset_in_code(caller);
    Phases &one = phases_of(barrier, caller);
    const Box box{map, reinterpret_cast<uintptr_t>(to), first, second, from};
    const unsigned place = shared_address(to);
    if (!map.base)
        refuse("{pc:%x} copies by TMA what TMA cannot read: columns that do not begin at multiples of 16 bytes", from);
    if (place % 1024)
        refuse("{pc:%x} copies to shared memory + %u, and the swizzle begins at multiples of 1,024", from, place);
    if (!fenced_since(one.made, *running))
        refuse("{pc:%x} signals a barrier that thread %u made {pc:%x} without fence_async since", from, one.made.thread,
               one.made.from);
    check_source(box, caller);
    access(to, box.bytes(), true, caller);
    memset(to, 0xff, box.bytes());
    const Stamp stamp = stamp_of_copy(one, from);
    for_pieces(regions[0], box.to, box.bytes(), [&](Piece &piece, uintptr_t) { piece.writer = stamp; });
    one.copies.push_back(box);
}

}  // namespace shim
