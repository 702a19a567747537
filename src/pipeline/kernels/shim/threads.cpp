// Who runs when: a grid on one CPU core.
//
// Blocks run one after another, in an order drawn from the seed. The threads of a block are fibers: each has a stack,
// and the scheduler jumps into one until it waits (a barrier, a call of the whole warp) or ends. Between two waits a
// thread runs alone; in which order the threads take turns is drawn anew for each round. A result that depends on the
// order therefore changes with the seed, and memory.cpp finds such races in a single run.
#include "threads.h"

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <numeric>
#include <random>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace shim {

Thread *running = nullptr;

namespace {

enum Jump { begun = 0, switched = 1, refused = 2 };

struct Warp { unsigned waiting = 0, barriers = 0; };

constexpr unsigned WARP_LANES = 32, WARPGROUP_THREADS = 128;

jmp_buf scheduler;
std::string message;  // why the launch was ended
std::vector<Thread> threads;
std::vector<Warp> warps;
std::vector<unsigned> waiting_in_warpgroup;
std::vector<void *> stacks;  // kept from launch to launch
dim3 grid, block;
uint3 block_now;
unsigned block_number, barriers, waiting_in_barrier;
unsigned holding, held;  // threads for which it holds: of those that wait in a barrier, and at the last one
uint64_t steps_left;
void (*entry)(void **);
void **entry_arguments;

void run_thread()
{
    entry(entry_arguments);
    running->state = State::ended;
    _longjmp(scheduler, switched);
}

void suspend(State state)
{
    running->state = state;
    if (_setjmp(running->place) == 0) _longjmp(scheduler, switched);
}

// Runs a thread until it waits or ends. False: it was refused something.
bool resume(Thread &thread)
{
    switch (_setjmp(scheduler)) {
    case begun:
        running = &thread;
        if (thread.state == State::fresh) setcontext(&thread.beginning);
        _longjmp(thread.place, 1);
    case switched: running = nullptr; return true;
    default: running = nullptr; return false;
    }
}

void *stack_of(unsigned thread)
{
    while (stacks.size() <= thread) {
        void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED) return nullptr;
        stacks.push_back(stack);
    }
    return stacks[thread];
}

bool make_threads()
{
    const unsigned count = block.x * block.y * block.z;
    threads.resize(count);
    warps.assign((count + 31) / 32, Warp());
    waiting_in_warpgroup.assign((count + 127) / 128, 0);
    for (unsigned i = 0; i < count; i++) {
        Thread &thread = threads[i];
        thread.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
        thread.number = i, thread.warp = i / 32, thread.lane = i % 32;
        thread.state = State::fresh;
        thread.copies.clear(), thread.groups = 0;
        thread.seen.clear(), thread.clock = thread.fences = thread.groups_of_products = 0, thread.fenced = false;
        thread.stack = static_cast<char *>(stack_of(i));
        if (!thread.stack) return false;
        getcontext(&thread.beginning);
        thread.beginning.uc_stack.ss_sp = thread.stack;
        thread.beginning.uc_stack.ss_size = STACK;
        makecontext(&thread.beginning, run_thread, 0);
    }
    return true;
}

// A loop without anything in it has no basic block that the compiler calls from. So a timer looks four times a second
// of the processor's time whether steps were taken since; in the shim's own code none passes without.
class Watch {
public:
    Watch()
    {
        struct sigaction action {};
        action.sa_handler = look, action.sa_flags = SA_NODEFER | SA_RESTART;
        sigaction(SIGVTALRM, &action, &before);
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID, event.sigev_signo = SIGVTALRM;
        event._sigev_un._tid = static_cast<int>(syscall(SYS_gettid));
        timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer);
        const itimerspec quarter{{0, 250'000'000}, {0, 250'000'000}};
        timer_settime(timer, 0, &quarter, nullptr);
        steps_seen = steps_left;
    }
    ~Watch()
    {
        timer_delete(timer);
        sigaction(SIGVTALRM, &before, nullptr);
    }

private:
    static void look(int)
    {
        if (running && steps_left == steps_seen) refuse("is in a loop that does nothing, for ever");
        steps_seen = steps_left;
    }
    static inline uint64_t steps_seen;
    struct sigaction before {};
    timer_t timer{};
};

unsigned lanes_of(unsigned warp) { return std::min<unsigned>(32, threads.size() - warp * 32); }

// Where the threads of a block stand, in words: "96 threads wait in __syncthreads (line 40), 32 threads have ended".
std::string where_threads_are()
{
    std::vector<std::pair<std::string, int>> places;  // "" where they have ended
    for (const Thread &thread : threads) {
        std::string place;
        if (thread.state != State::ended)
            place = " in " + std::string(thread.call) + " (line " + std::to_string(thread.line) + ")";
        auto found = std::find_if(places.begin(), places.end(), [&](auto &one) { return one.first == place; });
        if (found == places.end()) places.emplace_back(place, 1);
        else found->second++;
    }
    std::string words;
    for (auto &[place, count] : places) {
        const bool one = count == 1, ended = place.empty();
        words += (words.empty() ? "" : ", ") + std::to_string(count) + (one ? " thread " : " threads ");
        words += ended ? one ? "has ended" : "have ended" : (one ? "waits" : "wait") + place;
    }
    return words;
}

std::string run_block(std::mt19937_64 &draws)
{
    begin_block();
    barriers = waiting_in_barrier = holding = 0;
    if (!make_threads()) return "no memory for the stacks of " + std::to_string(threads.size()) + " threads";
    std::vector<unsigned> order(threads.size());
    std::iota(order.begin(), order.end(), 0);
    for (bool all_ended = false; !all_ended;) {
        std::shuffle(order.begin(), order.end(), draws);
        bool any_ran = false;
        all_ended = true;
        for (unsigned i : order) {
            Thread &thread = threads[i];
            const bool arrived = thread.state == State::in_phase && may_go_on(thread);
            if (thread.state == State::fresh || thread.state == State::ready || arrived) {
                if (!resume(thread)) return message;
                any_ran = true;
            }
            all_ended = all_ended && thread.state == State::ended;
        }
        if (!any_ran && !all_ended) return "the block waits for ever: " + where_threads_are();
    }
    const std::string left = copies_under_way() + products_under_way();
    return left.empty() ? "" : "the block ends, and nobody has waited for " + left;
}

}  // namespace

uint3 thread_index() { return running->index; }
uint3 block_index() { return block_now; }
dim3 block_size() { return block; }
dim3 grid_size() { return grid; }
unsigned lane() { return running->lane; }

Now now(const Thread &thread) { return {block_number, barriers, warps[thread.warp].barriers}; }

std::string in_code(unsigned from)
{
    char words[24];
    snprintf(words, sizeof words, "{pc:%x}", from);
    return words;
}

std::string name_of(const Thread &thread)
{
    char name[96];
    snprintf(name, sizeof name, "thread (%u,%u,%u) of block (%u,%u,%u)", thread.index.x, thread.index.y, thread.index.z,
             block_now.x, block_now.y, block_now.z);
    return name;
}

// What `other` has seen is added to what `into` has.
void join(std::vector<unsigned> &into, const std::vector<unsigned> &other)
{
    into.resize(std::max(into.size(), other.size()));
    for (size_t i = 0; i < other.size(); i++) into[i] = std::max(into[i], other[i]);
}

// Threads that pass a barrier have seen what each of them has.
static void share_what_was_seen(unsigned first, unsigned count)
{
    if (threads[first].seen.empty()) return;
    std::vector<unsigned> all;
    for (unsigned i = first; i < first + count; i++) join(all, threads[i].seen);
    for (unsigned i = first; i < first + count; i++) threads[i].seen = all;
}

unsigned block_barrier(int line, bool holds)
{
    running->call = "__syncthreads", running->line = line;
    holding += holds;
    if (++waiting_in_barrier < threads.size()) return suspend(State::in_barrier), held;
    for (Thread &thread : threads)
        if (thread.line != line) refuse("threads are in different barriers: %s", where_threads_are().c_str());
    for (Thread &thread : threads) thread.state = State::ready;
    held = holding, waiting_in_barrier = holding = 0;
    barriers++;
    share_what_was_seen(0, threads.size());
    return held;
}

// `count` threads from `first` on make a call; the last of them does it for all. False: this thread was not the last.
static bool together(const char *who, const char *name, int line, unsigned first, unsigned count, unsigned &waiting,
                     void *argument, Act act)
{
    running->call = name, running->line = line, running->argument = argument;
    if (++waiting < count) return suspend(State::in_call), false;
    void *arguments[WARPGROUP_THREADS];
    for (unsigned i = 0; i < count; i++) {
        const Thread &thread = threads[first + i];
        if (thread.line != line || thread.call != name)
            refuse("the %s are in different calls: %s", who, where_threads_are().c_str());
        arguments[i] = thread.argument;
    }
    act(arguments);
    for (unsigned i = 0; i < count; i++) threads[first + i].state = State::ready;
    waiting = 0;
    return true;
}

void warp_collective(const char *name, int line, unsigned mask, bool orders, void *argument, Act act)
{
    const unsigned first = running->warp * WARP_LANES, lanes = lanes_of(running->warp);
    Warp &warp = warps[running->warp];
    if (mask != 0xffffffffu) refuse("%s (line %d) names some of the lanes: the shim knows calls of the whole warp", name, line);
    if (!orders && lanes < WARP_LANES) refuse("%s (line %d) needs a warp of 32 threads, and has %u", name, line, lanes);
    if (!together("lanes of a warp", name, line, first, lanes, warp.waiting, argument, act) || !orders) return;
    warp.barriers++;
    share_what_was_seen(first, lanes);
}

void warpgroup_collective(const char *name, int line, void *argument, Act act)
{
    const unsigned warpgroup = running->number / WARPGROUP_THREADS, first = warpgroup * WARPGROUP_THREADS;
    if (first + WARPGROUP_THREADS > threads.size())
        refuse("%s (line %d) needs a warpgroup of 128 threads, and has %zu", name, line, threads.size() - first);
    unsigned &waiting = waiting_in_warpgroup[warpgroup];
    together("threads of a warpgroup", name, line, first, WARPGROUP_THREADS, waiting, argument, act);
}

void refuse(const char *format, ...)
{
    char words[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(words, sizeof words, format, values);
    va_end(values);
    message = name_of(*running) + ": " + words;
    _longjmp(scheduler, refused);
}

}  // namespace shim

// The compiler calls this in every basic block of the kernel (-fsanitize-coverage=trace-pc).
extern "C" void __sanitizer_cov_trace_pc()
{
    using namespace shim;
    if (running && steps_left-- == 0)
        refuse("has not ended within the limit of steps {pc:%zx}", offset_in_code(__builtin_return_address(0)));
}

// Runs a kernel; null, or why it was ended. The arguments are those of cuLaunchKernel, then the memory that the kernel may touch.
extern "C" const char *shim_launch(void (*kernel)(void **), const unsigned *grid_of, const unsigned *block_of,
                                   void **arguments, const shim::View *views, int view_count,
                                   unsigned shared_granule, uint64_t seed, uint64_t steps)
{
    using namespace shim;
    grid = {grid_of[0], grid_of[1], grid_of[2]};
    block = {block_of[0], block_of[1], block_of[2]};
    entry = kernel, entry_arguments = arguments, steps_left = steps;
    begin_launch(views, view_count, shared_granule);
    const Watch watch;
    std::mt19937_64 draws(seed);
    std::vector<unsigned> order(size_t(grid.x) * grid.y * grid.z);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), draws);
    message.clear();
    for (unsigned i : order) {
        block_number = i;
        block_now = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
        message = run_block(draws);
        if (!message.empty()) return message.c_str();
    }
    return nullptr;
}
