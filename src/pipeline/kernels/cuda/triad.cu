// triad: x = y + factor·z over arrays in the card's memory, two read and one written (STREAM's triad: J. McCalpin, "Memory
// Bandwidth and Machine Balance", 1995). The slope of the roofline.
//
// Each thread takes 16 bytes of each array at a time: one instruction moves them, and a warp's 512 bytes lie side by side.
// Launch: block (256), any grid: grid-stride, so each thread takes every T-th place, T the number of threads.

struct __align__(16) Four {
    float x[4];
};

extern "C" __global__ void __launch_bounds__(256) triad(Four *x, const Four *y, const Four *z, float factor, int fours)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) {
        const Four a = y[i], b = z[i];
        Four sum;
        #pragma unroll
        for (int j = 0; j < 4; j++) sum.x[j] = a.x[j] + factor * b.x[j];
        x[i] = sum;
    }
}
