// What the kernels use of Hopper, in place of the instructions of kernels/cuda/hopper.cuh. barriers.cpp and wgmma.cpp
// say what each does.
#pragma once
#include "shim.h"

// A matrix of 16-bit numbers as TMA sees it. The host makes it (pipeline.kernels.shim.program.Boxes).
struct __align__(128) TensorMap {
    const char *base;                // null: TMA cannot read this matrix
    uint64_t rows, columns, stride;  // `stride`: bytes from one column to the next
    uint32_t box_rows, box_columns;
};

using Barrier = unsigned long long;

namespace shim {

// A product that a thread asks for, with its sums and the descriptors of the operands.
struct Product {
    float *sums;
    unsigned columns;
    unsigned long long a, b;
    bool bfloat16;
    const void *caller;
};

unsigned shared_address(const void *place);
void barrier_init(Barrier &barrier, unsigned arrivals, const void *caller);
void barrier_arrive(Barrier &barrier, unsigned bytes, const void *caller);
void barrier_wait(Barrier &barrier, unsigned parity, int line, const void *caller);
void fence_async();
void copy_box(void *to, const TensorMap &map, Barrier &barrier, int first, int second, const void *caller);
void wgmma_fence(int line);
void wgmma(Product &product, int line);
void wgmma_commit(int line);
void wgmma_wait(unsigned newest, int line);
void hand_over_registers(int line);

}  // namespace shim

inline unsigned shared_address(const void *place) { return shim::shared_address(place); }

SHIM_CALL inline void barrier_init(Barrier &barrier, unsigned arrivals)
{
    shim::barrier_init(barrier, arrivals, __builtin_return_address(0));
}
SHIM_CALL inline void barrier_arrive(Barrier &barrier)
{
    shim::barrier_arrive(barrier, 0, __builtin_return_address(0));
}
SHIM_CALL inline void barrier_expect(Barrier &barrier, unsigned bytes)
{
    shim::barrier_arrive(barrier, bytes, __builtin_return_address(0));
}
SHIM_CALL inline void barrier_wait(Barrier &barrier, unsigned parity, int line = __builtin_LINE())
{
    shim::barrier_wait(barrier, parity, line, __builtin_return_address(0));
}
inline void fence_async() { shim::fence_async(); }
SHIM_CALL inline void copy_box(void *to, const TensorMap &map, Barrier &barrier, int first, int second)
{
    shim::copy_box(to, map, barrier, first, second, __builtin_return_address(0));
}

inline void wgmma_fence(int line = __builtin_LINE()) { shim::wgmma_fence(line); }
inline void wgmma_commit(int line = __builtin_LINE()) { shim::wgmma_commit(line); }

template <int NEWEST>
SHIM_OWN inline void wgmma_wait(int line = __builtin_LINE()) { shim::wgmma_wait(NEWEST, line); }

template <int COUNT>
inline void wgmma_keep(float (&)[COUNT]) {}  // for a compiler that would move what it knows nothing of

inline void not_before(int &) {}

template <int N>
SHIM_CALL void wgmma(float (&sums)[N / 2], unsigned long long a, unsigned long long b, int line = __builtin_LINE())
{
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "N of wgmma is a multiple of 8, 256 at the most");
#if defined(BF16)
    constexpr bool bfloat16 = true;
#else
    constexpr bool bfloat16 = false;
#endif
    shim::Product product{sums, N, a, b, bfloat16, __builtin_return_address(0)};
    shim::wgmma(product, line);
}

// A thread of the shim has what registers it needs: what is left of setmaxnreg is that a warpgroup executes it together.
template <int COUNT>
inline void fewer_registers(int line = __builtin_LINE())
{
    static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "setmaxnreg refuses it");
    shim::hand_over_registers(line);
}
template <int COUNT>
inline void more_registers(int line = __builtin_LINE())
{
    fewer_registers<COUNT>(line);
}
