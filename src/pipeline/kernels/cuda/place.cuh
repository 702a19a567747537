// In which order the blocks of D are computed (tuned, wgmma, wgmma_persistent).
#pragma once

struct Place {
    int row, column;
};

// Where in D block `number` begins. 8 block rows are computed together, column by column: blocks that run at the same
// time read the same parts of A and B, which stay in the L2 cache.
template <int BLOCK_M, int BLOCK_N>
__device__ Place block_place(int number, int M, int N)
{
    constexpr int GROUP = 8;
    const int down = (M + BLOCK_M - 1) / BLOCK_M, across = (N + BLOCK_N - 1) / BLOCK_N;
    const int group = number / (GROUP * across), in_group = number % (GROUP * across);
    const int height = min(GROUP, down - group * GROUP);  // the last group may have fewer block rows
    return {(group * GROUP + in_group % height) * BLOCK_M, in_group / height * BLOCK_N};
}
