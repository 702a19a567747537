// The program that is compiled for one kernel: its source, and a function that the scheduler calls for each thread.
// The command line names the source (KERNEL_FILE), the kernel, and its dynamic shared memory: its declaration in the
// source as `extern __shared__` has it (DYNAMIC_TYPE, DYNAMIC_NAME) and how large the launch makes it.
#include "shim.h"

#include KERNEL_FILE

#ifdef DYNAMIC_NAME
thread_local __attribute__((aligned(1024))) DYNAMIC_TYPE DYNAMIC_NAME[DYNAMIC_BYTES / sizeof(DYNAMIC_TYPE)];
#endif

extern "C" SHIM_OWN const char *shim_parameters() { return shim::parameters(KERNEL); }
extern "C" SHIM_OWN void shim_thread(void **arguments) { shim::call(KERNEL, arguments); }
