// cp.async, as CUDA's header of this name offers it: copies from global to shared memory that the thread does not wait for.
#pragma once
#include "shim.h"

SHIM_CALL inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0)
{
    shim::asynchronous_copy(to, from, bytes, zeros, __builtin_return_address(0));
}
inline void __pipeline_commit() { shim::commit_copies(); }
inline void __pipeline_wait_prior(size_t newest_groups_left) { shim::wait_for_copies(newest_groups_left); }
