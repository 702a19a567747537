// A stand-in for CUDA's driver library on a machine without a GPU: the calls that this package makes, with the
// signatures of cuda.h. Memory is the host's, a launch calls the function that the test has given, a graph plays the
// launches again that were made while its stream was captured, an event knows the time. What is wrong (memory that is
// not allocated, a stream that is captured twice, a module that is gone) is an error, as the driver has it.
//
// It shows that the calls are made as the driver wants them, and in which order; nothing of a GPU.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <string>
#include <vector>

using Result = int;
enum : Result { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500 };
using Launched = void (*)(const char *name, const unsigned *grid_block_dynamic, void **arguments);

struct Function { std::string name; int dynamic = 0; };
struct Launch { Function *function; unsigned sizes[7]; void **arguments; };
struct Stream { bool captured = false; std::vector<Launch> launches; };
struct Event { double seconds = 0; };
struct Graph { std::vector<Launch> launches; };

static Launched on_launch;
static std::map<uintptr_t, size_t> memory;
static std::map<std::string, long> counts;  // calls by name, for the test
static size_t free_bytes = size_t(1) << 34;

static double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static bool is_allocated(uintptr_t address, size_t size)
{
    auto found = memory.upper_bound(address);
    if (found == memory.begin()) return false;
    --found;
    return address + size <= found->first + found->second;
}

static void play(const Launch &launch) { on_launch(launch.function->name.c_str(), launch.sizes, launch.arguments); }

extern "C" {
void standin(Launched launched, size_t bytes) { on_launch = launched, free_bytes = bytes; }
long standin_count(const char *name) { return counts[name]; }
long standin_held() { return long(memory.size()); }

#define CALL(name) counts[#name]++
Result cuInit(unsigned) { CALL(cuInit); return OK; }
Result cuDriverGetVersion(int *version) { *version = 13000; return OK; }
Result cuDeviceGet(int *device, int index) { CALL(cuDeviceGet); *device = index; return index == 0 ? OK : INVALID; }
Result cuDeviceGetName(char *name, int length, int) { snprintf(name, length, "a stand-in"); return OK; }
Result cuDeviceTotalMem_v2(size_t *bytes, int) { *bytes = free_bytes; return OK; }
Result cuDeviceGetAttribute(int *value, int attribute, int)
{
    static const std::map<int, int> known{{16, 4}, {38, 1 << 20}, {39, 2048}, {97, 227 * 1024}};
    auto found = known.find(attribute);
    if (found == known.end()) return INVALID;
    *value = found->second;
    return OK;
}
Result cuDevicePrimaryCtxRetain(void **context, int) { CALL(retain); *context = &counts; return OK; }
Result cuDevicePrimaryCtxRelease_v2(int) { CALL(release); return OK; }
Result cuCtxSetCurrent(void *context) { return context == &counts ? OK : INVALID; }
Result cuCtxSynchronize() { CALL(cuCtxSynchronize); return OK; }
Result cuStreamCreate(void **stream, unsigned) { CALL(stream); *stream = new Stream; return OK; }
Result cuStreamDestroy_v2(void *stream) { CALL(no_stream); delete static_cast<Stream *>(stream); return OK; }
Result cuStreamBeginCapture_v2(void *stream, int)
{
    auto &one = *static_cast<Stream *>(stream);
    if (one.captured) return INVALID;
    one.captured = true, one.launches.clear();
    return OK;
}
Result cuStreamEndCapture(void *stream, void **graph)
{
    auto &one = *static_cast<Stream *>(stream);
    if (!one.captured) return INVALID;
    one.captured = false;
    *graph = new Graph{one.launches};
    return OK;
}
Result cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long)
{
    CALL(graph);
    *made = new Graph(*static_cast<Graph *>(graph));
    return OK;
}
Result cuGraphDestroy(void *graph) { delete static_cast<Graph *>(graph); return OK; }
Result cuGraphExecDestroy(void *graph) { CALL(no_graph); delete static_cast<Graph *>(graph); return OK; }
Result cuGraphUpload(void *, void *) { return OK; }
Result cuGraphLaunch(void *graph, void *)
{
    for (const Launch &launch : static_cast<Graph *>(graph)->launches) play(launch);
    return OK;
}
Result cuEventCreate(void **event, unsigned) { CALL(event); *event = new Event; return OK; }
Result cuEventDestroy_v2(void *event) { CALL(no_event); delete static_cast<Event *>(event); return OK; }
Result cuEventRecord(void *event, void *) { static_cast<Event *>(event)->seconds = now(); return OK; }
Result cuEventSynchronize(void *) { return OK; }
Result cuEventElapsedTime_v2(float *milliseconds, void *began, void *ended)
{
    *milliseconds = float(1000 * (static_cast<Event *>(ended)->seconds - static_cast<Event *>(began)->seconds));
    return OK;
}
Result cuModuleLoadData(void **module, const void *image)
{
    CALL(module);
    *module = new char;
    return memcmp(image, "\177ELF", 4) ? INVALID : OK;
}
Result cuModuleUnload(void *module) { CALL(no_module); delete static_cast<char *>(module); return OK; }
Result cuModuleGetFunction(void **function, void *, const char *name) { *function = new Function{name}; return OK; }
Result cuFuncSetAttribute(void *function, int attribute, int value)
{
    if (attribute != 8) return INVALID;  // the most dynamic shared memory
    static_cast<Function *>(function)->dynamic = value;
    return OK;
}
Result cuFuncGetAttribute(int *value, int attribute, void *function)
{
    if (attribute != 0 && attribute != 8) return INVALID;
    *value = attribute == 0 ? 1024 : static_cast<Function *>(function)->dynamic;
    return OK;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *, int, size_t) { *blocks = 2; return OK; }
Result cuMemAlloc_v2(uintptr_t *address, size_t size)
{
    if (size > free_bytes) return NO_MEMORY;
    *address = reinterpret_cast<uintptr_t>(aligned_alloc(256, (size + 255) / 256 * 256));
    memory[*address] = size;
    return OK;
}
Result cuMemFree_v2(uintptr_t address)
{
    if (!memory.erase(address)) return INVALID;
    free(reinterpret_cast<void *>(address));
    return OK;
}
Result cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t size)
{
    if (!is_allocated(to, size)) return INVALID;
    memcpy(reinterpret_cast<void *>(to), from, size);
    return OK;
}
Result cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t size)
{
    if (!is_allocated(from, size)) return INVALID;
    memcpy(to, reinterpret_cast<void *>(from), size);
    return OK;
}
Result cuMemsetD32_v2(uintptr_t to, unsigned value, size_t count)
{
    if (!is_allocated(to, 4 * count)) return INVALID;
    for (size_t i = 0; i < count; i++) reinterpret_cast<unsigned *>(to)[i] = value;
    return OK;
}
Result cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned dynamic, void *stream, void **arguments, void **)
{
    CALL(launch);
    auto &one = *static_cast<Function *>(function);
    if (dynamic > 48 * 1024 && int(dynamic) > one.dynamic) return INVALID;
    Launch launch{&one, {gx, gy, gz, bx, by, bz, dynamic}, arguments};
    auto &on = *static_cast<Stream *>(stream);
    if (on.captured) on.launches.push_back(launch);
    else play(launch);
    return OK;
}
Result cuGetErrorString(Result error, const char **words)
{
    *words = error == NO_MEMORY ? "out of memory" : "invalid argument";
    return OK;
}
Result cuGetProcAddress_v2(const char *symbol, void **found, int, uint64_t, int *state)
{
    for (const char *version : {"", "_v2"}) {
        *found = dlsym(RTLD_DEFAULT, (std::string(symbol) + version).c_str());
        Dl_info about;
        if (*found && dladdr(*found, &about) && strstr(about.dli_fname, "libcuda")) {
            if (state) *state = 0;
            return OK;
        }
    }
    *found = nullptr;
    if (state) *state = 1;
    return OK;
}
}
