// Who may touch what: every read and write of the kernel is checked before it happens.
//
// g++ compiles the kernel with -fsanitize=thread, which puts a call before each access to memory; the program is not
// linked to the sanitizer, and these calls end here. An access is allowed in four places: the thread's stack, the block's shared
// memory, the matrices that the launch was given, within their rows and columns, and the file's own variables. Everything else
// is refused with the address and the thread.
//
// Races are found by order, not by luck. Each piece of memory remembers its last writer and readers, with how many
// barriers their block and their warp had passed. Two accesses of different threads, one of them a write, need a barrier in
// between: __syncthreads in a block, __syncwarp in a warp, an mbarrier (barriers.cpp), and between blocks nothing suffices.
#include <algorithm>
#include <dlfcn.h>
#include <link.h>

#include "threads.h"

namespace shim {

// A matrix in global memory: `columns` pieces of `run` bytes, one every `stride` bytes.
struct View {
    const char *name;
    char *base;
    size_t run, stride, columns;
    unsigned element;  // bytes
    int writable;
};

namespace {

// What a piece of memory remembers. `other`: a reader before, another thread.
struct Piece { Stamp writer, reader, other; };

struct Region {
    const View *view;  // none: shared memory
    uintptr_t begin, end;
    unsigned granule;  // bytes of a piece
    std::vector<Piece> pieces;
};

std::vector<Region> regions;
uintptr_t code_begin;
std::vector<View> own_views;  // of the variables that the program itself has
thread_local char shared_memory_begins;  // one of the block's own variables: finds the others

// The block's shared memory: what the program has for each operating-system thread.
int find_shared(dl_phdr_info *info, size_t, void *range)
{
    const auto mine = reinterpret_cast<uintptr_t>(&shared_memory_begins);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto &part = info->dlpi_phdr[i];
        const auto begin = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
        if (part.p_type == PT_TLS && begin && begin <= mine && mine < begin + part.p_memsz) {
            *static_cast<std::pair<uintptr_t, uintptr_t> *>(range) = {begin, begin + part.p_memsz};
            return 1;
        }
    }
    return 0;
}

// Variables of the kernel's file (`__device__`, `__constant__`, `const`) lie in the program, with what the shim has.
int find_own(dl_phdr_info *info, size_t, void *)
{
    if (info->dlpi_addr != code_begin) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto &part = info->dlpi_phdr[i];
        if (part.p_type != PT_LOAD || part.p_flags & PF_X) continue;
        char *begin = reinterpret_cast<char *>(info->dlpi_addr + part.p_vaddr);
        own_views.push_back({"variables of the file", begin, part.p_memsz, part.p_memsz, 1, 1, part.p_flags & PF_W});
    }
    return 1;
}

Region region(const View *view, uintptr_t begin, uintptr_t end, unsigned granule)
{
    const bool changes = !view || view->writable;  // what is only read has no races
    return {view, begin, end, granule, std::vector<Piece>(changes ? (end - begin + granule - 1) / granule : 0)};
}

std::string place_in(const Region &region, uintptr_t address)
{
    const size_t offset = address - region.begin;
    if (!region.view) return "shared memory + " + std::to_string(offset);
    const View &view = *region.view;
    return std::string(view.name) + "[" + std::to_string(offset % view.stride / view.element) + ", " +
           std::to_string(offset / view.stride) + "]";
}

// The matrix next to an address that lies in none, and how far away it is.
std::string near(uintptr_t address)
{
    std::string words = "no argument of the kernel";
    size_t nearest = 1 << 20;
    for (const Region &one : regions) {
        const std::string name = one.view ? one.view->name : "shared memory";
        if (address >= one.end && address - one.end < nearest)
            nearest = address - one.end, words = std::to_string(nearest) + " bytes behind the end of " + name;
        if (address < one.begin && one.begin - address < nearest)
            nearest = one.begin - address, words = std::to_string(nearest) + " bytes before " + name;
    }
    return words;
}

[[noreturn]] void refuse_place(uintptr_t address, size_t bytes, bool writes, size_t from)
{
    refuse("%s %zu bytes out of bounds at 0x%zx, %s {pc:%zx}", writes ? "writes" : "reads", bytes, address,
           near(address).c_str(), from);
}

void check_view(const Region &region, uintptr_t address, size_t bytes, bool writes, size_t from)
{
    const View &view = *region.view;
    const size_t offset = address - region.begin, row = offset % view.stride;
    if (offset / view.stride >= view.columns || row + bytes > view.run)
        refuse("%s %zu bytes out of bounds at 0x%zx: %s, and %s has %zu rows and %zu columns {pc:%zx}",
               writes ? "writes" : "reads", bytes, address, place_in(region, address).c_str(), view.name,
               view.run / view.element, view.columns, from);
    if (writes && !view.writable)
        refuse("writes to %s, which is an input {pc:%zx}", place_in(region, address).c_str(), from);
}

bool happened(const Stamp &stamp, const Region &region, const Stamp &present)
{
    if (stamp.block == ~0u) return false;
    return region.view || stamp.block == present.block;  // a block does not see what another left in shared memory
}

// Whether an earlier access is certain to be over before the present one begins.
bool ordered(const Stamp &before, const Stamp &present)
{
    if (before.block != present.block) return false;
    if (before.thread == present.thread || before.barriers < present.barriers) return true;
    if (before.thread / 32 == present.thread / 32 && before.warp_barriers < present.warp_barriers) return true;
    const auto &seen = threads[present.thread].seen;
    return before.thread < seen.size() && before.clock < seen[before.thread];
}

std::string author(const Stamp &stamp)
{
    return stamp.thread < threads.size() ? "thread " + std::to_string(stamp.thread) : "TMA";
}

void check_race(const Stamp &before, const Region &region, const Stamp &present, uintptr_t address, const char *does,
                const char *did)
{
    if (!happened(before, region, present) || ordered(before, present)) return;
    if (before.atomic && present.atomic) return;
    const std::string whose = before.block == present.block ? author(before) : "block " + std::to_string(before.block);
    refuse("%s %s {pc:%x}, which %s %s {pc:%x} with no barrier between them: a race", does,
           place_in(region, address).c_str(), present.from, whose.c_str(), did, before.from);
}

Stamp stamp_of(const Thread &thread, size_t from, bool in_flight = false)
{
    const Now present = now(thread);
    Stamp stamp;
    stamp.block = present.block, stamp.thread = thread.number;
    stamp.barriers = present.barriers, stamp.warp_barriers = present.warp_barriers;
    stamp.clock = thread.clock, stamp.fences = thread.fences;
    stamp.from = from, stamp.in_flight = in_flight, stamp.atomic = false;
    return stamp;
}

void check_in_flight(const Stamp &writer, const Region &region, const Stamp &present, uintptr_t address,
                     const char *does)
{
    if (writer.in_flight)
        refuse("%s %s {pc:%x} while the copy that %s started {pc:%x} is on its way", does,
               place_in(region, address).c_str(), present.from, author(writer).c_str(), writer.from);
}

// Two readers are enough: whoever writes next is not both of them. One of another warp is kept in preference, since
// barriers of a warp do not order it.
void remember_reader(Piece &piece, const Region &region, const Stamp &present)
{
    const bool other_counts = happened(piece.other, region, present) && !ordered(piece.other, present);
    const bool one_warp = piece.reader.thread / 32 == present.thread / 32;
    if (piece.reader.thread != present.thread && !(other_counts && one_warp)) piece.other = piece.reader;
    piece.reader = present;
}

// Whether an atomic would take the place of an ordinary write by the same thread that races with the atomics of others.
bool hides(const Stamp &present, const Stamp &before)
{
    return present.atomic && !before.atomic && before.block == present.block && before.thread == present.thread &&
           before.barriers == present.barriers && before.warp_barriers == present.warp_barriers &&
           before.clock == present.clock;
}

void check_piece(Piece &piece, const Region &region, const Stamp &present, uintptr_t address, bool writes)
{
    const bool written = happened(piece.writer, region, present);
    if (written) check_in_flight(piece.writer, region, present, address, writes ? "writes" : "reads");
    check_race(piece.writer, region, present, address, writes ? "writes" : "reads", "wrote");
    if (!written && !region.view && (!writes || present.atomic))
        refuse("reads %s {pc:%x}, where nobody has written", place_in(region, address).c_str(), present.from);
    if (!writes) return remember_reader(piece, region, present);
    check_race(piece.reader, region, present, address, "writes", "read");
    check_race(piece.other, region, present, address, "writes", "read");
    if (written && hides(present, piece.writer)) return;
    piece.writer = present;
}

Region *region_of(uintptr_t address)
{
    for (Region &one : regions)
        if (address - one.begin < one.end - one.begin) return &one;
    return nullptr;
}

template <class Do>
void for_pieces(Region &region, uintptr_t address, size_t bytes, Do what)
{
    const size_t first = (address - region.begin) / region.granule;
    const size_t last = (address + bytes - 1 - region.begin) / region.granule;
    for (size_t i = first; i <= last; i++) what(region.pieces[i], region.begin + i * region.granule);
}

// `to` of a copy becomes what it copies.
void finish(const Copy &copy, size_t from)
{
    memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
    memset(static_cast<char *>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
    const auto address = reinterpret_cast<uintptr_t>(copy.to);
    const Stamp present = stamp_of(*running, from);
    for_pieces(*region_of(address), address, copy.bytes, [&](Piece &piece, uintptr_t) { piece.writer = present; });
}

}  // namespace

size_t offset_in_code(const void *address) { return reinterpret_cast<uintptr_t>(address) - code_begin; }

void begin_launch(const View *views, int count, unsigned shared_granule)
{
    Dl_info code;
    dladdr(reinterpret_cast<void *>(&begin_launch), &code);
    code_begin = reinterpret_cast<uintptr_t>(code.dli_fbase);
    regions.clear();
    shared_memory_begins = 0;  // from here on this operating-system thread has the memory
    std::pair<uintptr_t, uintptr_t> shared{};
    dl_iterate_phdr(find_shared, &shared);
    regions.push_back(region(nullptr, shared.first, shared.second, shared_granule));
    for (int i = 0; i < count; i++) {
        const auto begin = reinterpret_cast<uintptr_t>(views[i].base);
        regions.push_back(region(&views[i], begin, begin + views[i].stride * views[i].columns, views[i].element));
    }
    own_views.clear();
    dl_iterate_phdr(find_own, nullptr);
    for (const View &own : own_views) {
        const auto begin = reinterpret_cast<uintptr_t>(own.base);
        regions.push_back(region(&own, begin, begin + own.run, shared_granule));
    }
}

// Shared memory holds bytes 0xff when a block begins: NaN in every floating-point type, -1 in every signed integer.
void begin_block()
{
    memset(reinterpret_cast<void *>(regions[0].begin), 0xff, regions[0].end - regions[0].begin);
    forget_barriers();
    forget_products();
}

static void checked_access(const void *place, size_t bytes, bool writes, bool atomic, const void *caller)
{
    if (!running) return;
    const auto address = reinterpret_cast<uintptr_t>(place);
    if (address - reinterpret_cast<uintptr_t>(running->stack) < STACK) return;
    const size_t from = offset_in_code(caller);
    Region *region = region_of(address);
    // g++ guards the initialisation of a thread_local class by a byte beside it, which the kernel does not know of.
    if (region && !region->view && bytes == 1 && region->granule > 1) return;
    if (region && region->view) check_view(*region, address, bytes, writes, from);
    if (!region || address + bytes > region->end) refuse_place(address, bytes, writes, from);
    if (region->pieces.empty()) return;
    if (writes && !region->view) check_products(address, bytes, from);
    Stamp present = stamp_of(*running, from);
    present.atomic = atomic;
    for_pieces(*region, address, bytes,
               [&](Piece &piece, uintptr_t at) { check_piece(piece, *region, present, at, writes); });
}

void access(const void *place, size_t bytes, bool writes, const void *caller)
{
    checked_access(place, bytes, writes, false, caller);
}

void atomic_access(const void *place, size_t bytes, const void *caller)
{
    if (reinterpret_cast<uintptr_t>(place) % bytes)
        refuse("an atomic of %zu bytes at %p, which is not a multiple of %zu {pc:%zx}", bytes, place, bytes,
               offset_in_code(caller));
    checked_access(place, bytes, true, true, caller);
}

// What one instruction moves has to lie at a multiple of its size.
static void aligned_access(const void *place, size_t bytes, bool writes, const void *caller)
{
    if (running && reinterpret_cast<uintptr_t>(place) % bytes)
        refuse("%s %zu bytes at %p, which is not a multiple of %zu {pc:%zx}", writes ? "writes" : "reads", bytes, place,
               bytes, offset_in_code(caller));
    access(place, bytes, writes, caller);
}

void asynchronous_copy(void *to, const void *from, size_t bytes, size_t zeros, const void *caller)
{
    const auto target = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
    const size_t code = offset_in_code(caller);
    if (bytes != 4 && bytes != 8 && bytes != 16) refuse("cp.async copies 4, 8 or 16 bytes, not %zu {pc:%zx}", bytes, code);
    if (zeros > bytes) refuse("cp.async of %zu bytes with %zu zeros {pc:%zx}", bytes, zeros, code);
    if (target % bytes || source % bytes)
        refuse("cp.async of %zu bytes between addresses that are no multiples of %zu {pc:%zx}", bytes, bytes, code);
    Region *region = region_of(target);
    if (!region || region->view) refuse("cp.async to what is not shared memory {pc:%zx}", code);
    if (bytes > zeros) access(from, bytes - zeros, false, caller);
    access(to, bytes, true, caller);
    memset(to, 0xff, bytes);
    for_pieces(*region, target, bytes, [](Piece &piece, uintptr_t) { piece.writer.in_flight = true; });
    running->copies.push_back({to, from, bytes, zeros, running->groups});
}

void commit_copies() { running->groups++; }

void wait_for_copies(size_t newest_groups_left)
{
    auto &copies = running->copies;
    const auto waits = [&](const Copy &copy) { return copy.group + newest_groups_left < running->groups; };
    const size_t from = offset_in_code(__builtin_return_address(0));
    for (const Copy &copy : copies)
        if (waits(copy)) finish(copy, from);
    copies.erase(std::remove_if(copies.begin(), copies.end(), waits), copies.end());
}

}  // namespace shim

// The compiler's calls: one for each size, aligned or not.
extern "C" {
#define SHIM_ACCESS(BYTES)                                                                                            \
    void __tsan_read##BYTES(void *place) { shim::aligned_access(place, BYTES, false, __builtin_return_address(0)); }          \
    void __tsan_write##BYTES(void *place) { shim::aligned_access(place, BYTES, true, __builtin_return_address(0)); }          \
    void __tsan_unaligned_read##BYTES(void *place) { shim::access(place, BYTES, false, __builtin_return_address(0)); } \
    void __tsan_unaligned_write##BYTES(void *place) { shim::access(place, BYTES, true, __builtin_return_address(0)); }
SHIM_ACCESS(1)
SHIM_ACCESS(2)
SHIM_ACCESS(4)
SHIM_ACCESS(8)
SHIM_ACCESS(16)
void __tsan_read_range(void *place, size_t bytes) { shim::access(place, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void *place, size_t bytes) { shim::access(place, bytes, true, __builtin_return_address(0)); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
