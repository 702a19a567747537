// The shim itself, compiled without the instrumentation that the kernel gets.
#include "threads.cpp"

#include "memory.cpp"

#include "barriers.cpp"

#include "wgmma.cpp"
