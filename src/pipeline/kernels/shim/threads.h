// What threads.cpp and memory.cpp share: the state of the thread that runs.
#pragma once
#include <csetjmp>
#include <string>
#include <ucontext.h>
#include <vector>

#include "include/shim.h"

namespace shim {

constexpr size_t STACK = 64 << 10;  // bytes for each thread of a kernel

enum class State { fresh, ready, in_warp_call, in_barrier, ended };

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
    const char *call;  // the warp's call or the barrier where it waits, and its line
    int line;
    bool orders;
    void *argument;
    std::vector<Copy> copies;
    unsigned groups;  // commits so far
};

extern Thread *running;  // none while the scheduler runs

// The running block's number in the launch, and how many barriers it and the running warp have passed.
struct Now { unsigned block, barriers, warp_barriers; };
Now now();

// memory.cpp
struct View;
void begin_launch(const View *views, int count, unsigned shared_granule);
void begin_block();
size_t offset_in_code(const void *address);  // as the symbols of the program have it

std::string name_of(const Thread &thread);

}  // namespace shim
