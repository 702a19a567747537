// cooperative_groups: the block, and tiles of a warp, whose calls all lanes of the warp make together here.
#pragma once
#include "shim.h"

namespace cooperative_groups {

class thread_block {
public:
    void sync(int line = __builtin_LINE()) const { shim::block_barrier(line); }
    unsigned thread_rank() const { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
    unsigned size() const { return blockDim.x * blockDim.y * blockDim.z; }
    unsigned num_threads() const { return size(); }
    dim3 group_index() const { return blockIdx; }
    dim3 thread_index() const { return threadIdx; }
};

inline thread_block this_thread_block() { return {}; }
inline void sync(const thread_block &block, int line = __builtin_LINE()) { block.sync(line); }

template <unsigned SIZE>
class thread_block_tile {
    static_assert(SIZE <= 32 && (SIZE & (SIZE - 1)) == 0, "the shim has tiles of up to 32 threads");
    static constexpr unsigned ALL = 0xffffffffu;
    unsigned of_mine(unsigned ballot) const { return ballot >> (shim::lane() & ~(SIZE - 1)) & (ALL >> (32 - SIZE)); }

public:
    unsigned thread_rank() const { return shim::lane() % SIZE; }
    static constexpr unsigned size() { return SIZE; }
    static constexpr unsigned num_threads() { return SIZE; }
    unsigned meta_group_rank() const { return thread_block().thread_rank() / SIZE; }
    unsigned meta_group_size() const { return (thread_block().size() + SIZE - 1) / SIZE; }
    void sync(int line = __builtin_LINE()) const { __syncwarp(ALL, line); }
    template <class T>
    T shfl(T value, int source, int line = __builtin_LINE()) const { return __shfl_sync(ALL, value, source, SIZE, line); }
    template <class T>
    T shfl_up(T value, unsigned by, int line = __builtin_LINE()) const { return __shfl_up_sync(ALL, value, by, SIZE, line); }
    template <class T>
    T shfl_down(T value, unsigned by, int line = __builtin_LINE()) const { return __shfl_down_sync(ALL, value, by, SIZE, line); }
    template <class T>
    T shfl_xor(T value, int with, int line = __builtin_LINE()) const { return __shfl_xor_sync(ALL, value, with, SIZE, line); }
    unsigned ballot(int holds, int line = __builtin_LINE()) const { return of_mine(__ballot_sync(ALL, holds, line)); }
    int any(int holds, int line = __builtin_LINE()) const { return ballot(holds, line) != 0; }
    int all(int holds, int line = __builtin_LINE()) const { return ballot(holds, line) == ALL >> (32 - SIZE); }
};

template <unsigned SIZE>
thread_block_tile<SIZE> tiled_partition(const thread_block &) { return {}; }

template <class T>
struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T>
struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T>
struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };

template <unsigned SIZE, class T, class Combine>
T reduce(const thread_block_tile<SIZE> &tile, T value, Combine combine, int line = __builtin_LINE())
{
    for (unsigned with = SIZE / 2; with; with /= 2) value = combine(value, tile.shfl_xor(value, with, line));
    return value;
}

}  // namespace cooperative_groups
