// What Hopper (sm_90a) does by instructions that CUDA C++ has no function for: barriers in shared memory that count
// bytes, copies by TMA, products of a warpgroup, registers handed from one warpgroup to another.
//
// Each function is one instruction of the PTX ISA, whose name stands in it; the sections "Parallel Synchronization and
// Communication Instructions: mbarrier", "Asynchronous copy: tensor" and "Asynchronous Warpgroup Level Matrix
// Instructions" say what it does. The shim has functions of the same names (kernels/shim/include/hopper.cuh).
#pragma once

// How a matrix lies in global memory and in which boxes TMA copies it: CUDA's CUtensorMap, which the host makes.
struct __align__(128) TensorMap {
    unsigned long long words[16];
};

// An mbarrier. It goes through phases: one is over when all threads that it waits for have arrived, and all bytes that
// were announced are there.
using Barrier = unsigned long long;

__device__ __forceinline__ unsigned shared_address(const void *place)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

__device__ __forceinline__ void barrier_init(Barrier &barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(Barrier &barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrives, and announces bytes that TMA will bring.
__device__ __forceinline__ void barrier_expect(Barrier &barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}

// Waits until the phase of this parity is over: phases 0, 2, ... have parity 0. On a new barrier parity 1 counts as
// over.
__device__ __forceinline__ void barrier_wait(Barrier &barrier, unsigned parity)
{
    unsigned over;
    do {
        asm volatile("{\n"
                     ".reg .pred over;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, over;\n"
                     "}"
                     : "=r"(over)
                     : "r"(shared_address(&barrier)), "r"(parity)
                     : "memory");
    } while (!over);
}

// What this thread has written to shared memory is there for TMA and wgmma, which read past the caches of threads.
__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Starts the copy of the box that begins at (`first`, `second`) of a matrix, `first` along its columns. What sticks out
// of the matrix becomes zero. The barrier counts the bytes, those of zeros too.
__device__ __forceinline__ void copy_box(void *to, const TensorMap &map, Barrier &barrier, int first, int second)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
                 "l"(reinterpret_cast<unsigned long long>(&map)), "r"(shared_address(&barrier)), "r"(first), "r"(second)
                 : "memory");
}

// Before the first wgmma, and before one whose sums the thread has read or written since.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group of the products that were started since the last.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until no more than the newest NEWEST groups are on their way.
template <int NEWEST>
__device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(NEWEST) : "memory");
}

// No instruction: keeps the compiler from moving what it does with sums to the other side of this line.
template <int COUNT>
__device__ __forceinline__ void wgmma_keep(float (&sums)[COUNT])
{
    #pragma unroll
    for (float &sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

// No instruction: what is computed from this number is not computed before this line.
__device__ __forceinline__ void not_before(int &number) { asm volatile("" : "+r"(number)); }

#if defined(BF16)
#define WGMMA_INPUT "bf16"
#else
#define WGMMA_INPUT "f16"
#endif
#define NAMES_64                                                                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "   \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "   \
    "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128                                                                                                      \
    NAMES_64                                                                                                           \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, " \
    "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, " \
    "%107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "     \
    "%125, %126, %127"
#define SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_64(i) SUMS_16(i), SUMS_16(i + 16), SUMS_16(i + 32), SUMS_16(i + 48)

// A warpgroup (128 threads) starts sums += a · b, 64×16 times 16×N. `a` and `b` are descriptors of matrices in shared
// memory; A lies column by column ("MN-major", the 1 in the last but one place), B column by column too ("K-major", the
// 0).
template <int N>
__device__ __forceinline__ void wgmma(float (&sums)[N / 2], unsigned long long a, unsigned long long b)
{
    static_assert(N == 128 || N == 256, "written out for these two");
    if constexpr (N == 128)
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." WGMMA_INPUT "." WGMMA_INPUT " {" NAMES_64
                     "}, %64, %65, 1, 1, 1, 1, 0;"
                     : SUMS_64(0)
                     : "l"(a), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." WGMMA_INPUT "." WGMMA_INPUT " {" NAMES_128
                     "}, %128, %129, 1, 1, 1, 1, 0;"
                     : SUMS_64(0), SUMS_64(64)
                     : "l"(a), "l"(b));
}

// A warpgroup gives registers back, or takes them: afterwards each of its threads has COUNT.
template <int COUNT>
__device__ __forceinline__ void fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
