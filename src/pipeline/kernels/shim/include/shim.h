// What a CUDA source finds in place of the CUDA toolkit when g++ compiles it: the keywords, the indices, the barriers.
// This file is included before the first line of the kernel. Everything declared in `shim` is defined in threads.cpp
// (who runs when) and memory.cpp (who may touch what).
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>  // printf, which needs no header in CUDA
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define alignas(...) __align__(shim::alignment<__VA_ARGS__>())  // which g++ takes behind __shared__ too
#define __builtin_assume(condition) ((condition) ? void() : __builtin_unreachable())

// Shared memory belongs to a block, and one operating-system thread runs one block at a time. So "one copy for each
// operating-system thread" is what `__shared__` means here, also in `extern __shared__ char buffer[]`.
// `used`: the compiler knows no other writer, and would take what no thread has written for zero.
#define __shared__ __attribute__((used)) thread_local

// Code of the shim inside the headers: neither its memory accesses nor its steps are the kernel's. SHIM_CALL: so that
// the return address lies in the kernel.
#define SHIM_OWN __attribute__((no_sanitize_thread, no_sanitize_coverage))
#define SHIM_CALL __attribute__((noinline)) SHIM_OWN

namespace shim {

// What is written in alignas(...): a number of bytes, or a type.
template <size_t BYTES>
constexpr size_t alignment() { return BYTES; }
template <class T>
constexpr size_t alignment() { return alignof(T); }

}  // namespace shim

#include "vectors.h"

namespace shim {

// Constant as far as one thread of the kernel can see, so the compiler may keep the result in a register.
uint3 thread_index() __attribute__((const));
uint3 block_index() __attribute__((const));
dim3 block_size() __attribute__((const));
dim3 grid_size() __attribute__((const));
unsigned lane() __attribute__((const));

// The thread waits until all threads of its block are in the same line. For how many of them `holds` does.
unsigned block_barrier(int line, bool holds = false);

// The thread waits until all lanes of its warp are in the same call. The last to arrive runs `act` on the argument of
// every lane. Only __syncwarp (`orders`) orders what the lanes read and write in memory before and after it.
using Act = void (*)(void **arguments);
void warp_collective(const char *name, int line, unsigned mask, bool orders, void *argument, Act act);

// The same for the 128 threads of a warpgroup.
void warpgroup_collective(const char *name, int line, void *argument, Act act);

// An access to memory by the running thread: it ends the launch with a message unless the access is allowed and races
// with no other. `from` is the return address of the call in the kernel, for the message's file and line.
void access(const void *address, size_t bytes, bool writes, const void *from);

// A read and a write in one, which races with no other of its kind.
void atomic_access(const void *address, size_t bytes, const void *from);

// cp.async: nothing is copied before the wait for the group that the copy was committed to.
void asynchronous_copy(void *to, const void *from, size_t bytes, size_t zeros, const void *caller);
void commit_copies();
void wait_for_copies(size_t newest_groups_left);

// Ends the launch; Python raises the message.
[[noreturn]] void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Calls a kernel with the arguments to which an array points, as cuLaunchKernel takes them.
template <class... P, size_t... I>
SHIM_CALL void call(void (*kernel)(P...), void **arguments, std::index_sequence<I...>)
{
    kernel(*static_cast<P *>(arguments[I])...);
}
template <class... P>
SHIM_CALL void call(void (*kernel)(P...), void **arguments)
{
    call(kernel, arguments, std::index_sequence_for<P...>{});
}

// The kind and the bytes of each parameter, as "p8 i4 f4": a pointer, a whole number, a real one; "s128" is a class.
template <class... P>
SHIM_OWN const char *parameters(void (*)(P...))
{
    static char words[32 * (1 + sizeof...(P))];
    char *end = words;
    ((end += snprintf(end, 32, "%c%zu ",
                      std::is_pointer_v<P> ? 'p' : std::is_integral_v<P> ? 'i' : std::is_floating_point_v<P> ? 'f' : 's',
                      sizeof(P))),
     ...);
    return words;
}

}  // namespace shim

#define threadIdx (shim::thread_index())
#define blockIdx (shim::block_index())
#define blockDim (shim::block_size())
#define gridDim (shim::grid_size())
#define warpSize 32

[[noreturn]] inline void __trap() { shim::refuse("calls __trap"); }
#define assert(condition) ((condition) ? void() : shim::refuse("fails assert(%s) in line %d", #condition, __LINE__))

#include "arithmetic.h"
#include "together.h"
