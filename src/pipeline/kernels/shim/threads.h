// What threads.cpp and memory.cpp share: the state of the thread that runs.
#pragma once
#include <csetjmp>
#include <string>
#include <ucontext.h>
#include <vector>

#include "include/shim.h"

namespace shim {

constexpr size_t STACK = 64 << 10;  // bytes for each thread of a kernel

enum class State { fresh, ready, in_call, in_barrier, in_phase, ended };

// One access: who and when. `clock`: arrivals of the thread at mbarriers until then; `fences`: its fences. `from` is
// where in the program's code, with a bit for a copy that is on its way and one for an atomic.
struct Stamp {
    unsigned block = ~0u, thread, barriers, warp_barriers, clock, fences;
    unsigned from : 30, in_flight : 1, atomic : 1;
};

struct Phases;  // an mbarrier

// A copy that cp.async has started. `group` is the number of commits before it.
struct Copy {
    void *to;
    const void *from;
    size_t bytes, zeros;
    unsigned group;
};

// One thread of the kernel: a stack, where it goes on, and what it waits for.
struct Thread {
    uint3 index;
    unsigned number, warp, lane;
    char *stack;
    ucontext_t beginning;
    jmp_buf place;
    State state;
    const char *call;  // the call or the barrier where it waits, and its line
    int line;
    bool orders;
    void *argument;
    std::vector<Copy> copies;
    unsigned groups;  // commits so far
    const Phases *waits_for;  // the mbarrier where it waits, and for a phase of which parity
    unsigned parity;
    std::vector<unsigned> seen;  // how many arrivals of each other thread (barriers.cpp); empty: there are no mbarriers
    unsigned clock, fences;      // its arrivals, and its calls of fence_async
    unsigned groups_of_products;
    bool fenced;  // by wgmma_fence
};

extern Thread *running;  // none while the scheduler runs

// The running block's number in the launch, and how many barriers it and a thread's warp have passed.
struct Now { unsigned block, barriers, warp_barriers; };
Now now(const Thread &thread);

// memory.cpp
struct View;
void begin_launch(const View *views, int count, unsigned shared_granule);
void begin_block();
size_t offset_in_code(const void *address);  // as the symbols of the program have it

// barriers.cpp
bool may_go_on(const Thread &thread);  // one that waits for a phase
void forget_barriers();
std::string copies_under_way();  // one of them in words; empty where there are none

// wgmma.cpp
void check_products(uintptr_t address, size_t bytes, unsigned from);
void forget_products();
std::string products_under_way();  // as copies_under_way

std::string in_code(unsigned from);  // for a message, where Python puts file and line
std::string name_of(const Thread &thread);

}  // namespace shim
