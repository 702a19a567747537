// What threads do with each other: barriers of a block and of a warp, shuffles, votes, sums of a warp, atomics.
#pragma once
#include <type_traits>

inline void __syncthreads(int line = __builtin_LINE()) { shim::block_barrier(line); }
inline int __syncthreads_count(int holds, int line = __builtin_LINE()) { return shim::block_barrier(line, holds); }
inline int __syncthreads_or(int holds, int line = __builtin_LINE()) { return shim::block_barrier(line, holds) > 0; }
inline int __syncthreads_and(int holds, int line = __builtin_LINE()) { return shim::block_barrier(line, !holds) == 0; }

inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE())
{
    shim::warp_collective("__syncwarp", line, mask, true, nullptr, [](void **) {});
}

// One operating-system thread runs all of them: each sees at once what another has written. Nothing is ordered by it
// that a barrier has to order.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

namespace shim {

struct Shuffle {
    uint64_t bits;    // what this lane offers, then what it gets
    unsigned source;  // the lane that it reads
};

SHIM_CALL inline void exchange(void **lanes)
{
    uint64_t offered[32];
    for (int lane = 0; lane < 32; lane++) offered[lane] = static_cast<Shuffle *>(lanes[lane])->bits;
    for (int lane = 0; lane < 32; lane++) {
        auto &mine = *static_cast<Shuffle *>(lanes[lane]);
        mine.bits = offered[mine.source];
    }
}

// `width`: the warp falls into groups of so many lanes. Of a `source` before `first` or behind its group a lane gets its
// own value.
template <class T>
SHIM_CALL T shuffled(const char *name, int line, unsigned mask, T value, int source, int width, int first)
{
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    if (width < 1 || width > 32 || (width & (width - 1))) refuse("%s (line %d) of width %d: it is 1, 2, 4, 8, 16 or 32", name, line, width);
    const int mine = lane(), last = mine | (width - 1);
    Shuffle offer{0, unsigned(source >= first && source <= last ? source : mine)};
    memcpy(&offer.bits, &value, sizeof value);
    warp_collective(name, line, mask, false, &offer, exchange);
    memcpy(&value, &offer.bits, sizeof value);
    return value;
}

SHIM_OWN inline int first_of_group(int width) { return lane() & ~(width - 1); }

}  // namespace shim

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE())
{
    const int first = shim::first_of_group(width);
    return shim::shuffled("__shfl_sync", line, mask, value, first + (source & (width - 1)), width, first);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE())
{
    const int source = int(shim::lane()) - int(by);
    return shim::shuffled("__shfl_up_sync", line, mask, value, source, width, shim::first_of_group(width));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE())
{
    const int source = int(shim::lane()) + int(by);
    return shim::shuffled("__shfl_down_sync", line, mask, value, source, width, shim::first_of_group(width));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32, int line = __builtin_LINE())
{
    constexpr int FIRST = 0;  // this one alone reads lanes of the groups before its own
    return shim::shuffled("__shfl_xor_sync", line, mask, value, int(shim::lane()) ^ with, width, FIRST);
}

namespace shim {

// Every lane gets a bit of each.
SHIM_CALL inline unsigned ballot(const char *name, int line, unsigned mask, bool holds)
{
    unsigned mine = holds;
    warp_collective(name, line, mask, false, &mine, [](void **lanes) SHIM_OWN {
        unsigned bits = 0;
        for (int lane = 0; lane < 32; lane++) bits |= *static_cast<unsigned *>(lanes[lane]) << lane;
        for (int lane = 0; lane < 32; lane++) *static_cast<unsigned *>(lanes[lane]) = bits;
    });
    return mine;
}

template <class T, class Combine>
SHIM_CALL T reduced(const char *name, int line, unsigned mask, T value, Combine)
{
    warp_collective(name, line, mask, false, &value, [](void **lanes) SHIM_OWN {
        T all = *static_cast<T *>(lanes[0]);
        for (int lane = 1; lane < 32; lane++) all = Combine()(all, *static_cast<T *>(lanes[lane]));
        for (int lane = 0; lane < 32; lane++) *static_cast<T *>(lanes[lane]) = all;
    });
    return value;
}

struct Sum { template <class T> T operator()(T a, T b) { return a + b; } };
struct Least { template <class T> T operator()(T a, T b) { return b < a ? b : a; } };
struct Greatest { template <class T> T operator()(T a, T b) { return a < b ? b : a; } };

}  // namespace shim

inline unsigned __ballot_sync(unsigned mask, int holds, int line = __builtin_LINE())
{
    return shim::ballot("__ballot_sync", line, mask, holds);
}
inline int __any_sync(unsigned mask, int holds, int line = __builtin_LINE())
{
    return shim::ballot("__any_sync", line, mask, holds) != 0;
}
inline int __all_sync(unsigned mask, int holds, int line = __builtin_LINE())
{
    return shim::ballot("__all_sync", line, mask, holds) == 0xffffffffu;
}
inline unsigned __activemask() { return 0xffffffffu; }  // the calls that it is for are made by whole warps here

#define SHIM_REDUCE(NAME, T, COMBINE)                                     \
    inline T NAME(unsigned mask, T value, int line = __builtin_LINE())    \
    {                                                                     \
        return shim::reduced(#NAME, line, mask, value, COMBINE());        \
    }
SHIM_REDUCE(__reduce_add_sync, int, shim::Sum)
SHIM_REDUCE(__reduce_add_sync, unsigned, shim::Sum)
SHIM_REDUCE(__reduce_min_sync, int, shim::Least)
SHIM_REDUCE(__reduce_min_sync, unsigned, shim::Least)
SHIM_REDUCE(__reduce_max_sync, int, shim::Greatest)
SHIM_REDUCE(__reduce_max_sync, unsigned, shim::Greatest)
#undef SHIM_REDUCE

namespace shim {
template <class T>
struct Of { using type = T; };
template <class T>
using Same = typename Of<T>::type;  // so that T is that of the pointer: atomicAdd(&unsigned, 1)
}  // namespace shim

// Each gives what was there before. Between two of them no barrier is wanted.
#define SHIM_ATOMIC(NAME, NEW)                                                \
    template <class T>                                                        \
    SHIM_CALL T NAME(T *at, shim::Same<T> value)                              \
    {                                                                         \
        shim::atomic_access(at, sizeof(T), __builtin_return_address(0));      \
        const T old = *at;                                                    \
        *at = NEW;                                                            \
        return old;                                                           \
    }
SHIM_ATOMIC(atomicAdd, old + value)
SHIM_ATOMIC(atomicSub, old - value)
SHIM_ATOMIC(atomicMin, value < old ? value : old)
SHIM_ATOMIC(atomicMax, old < value ? value : old)
SHIM_ATOMIC(atomicExch, value)
SHIM_ATOMIC(atomicAnd, old & value)
SHIM_ATOMIC(atomicOr, old | value)
SHIM_ATOMIC(atomicXor, old ^ value)
SHIM_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
#undef SHIM_ATOMIC

template <class T>
SHIM_CALL T atomicCAS(T *at, shim::Same<T> expected, shim::Same<T> value)
{
    shim::atomic_access(at, sizeof(T), __builtin_return_address(0));
    const T old = *at;
    if (old == expected) *at = value;
    return old;
}
