// CUDA's vector types: up to four numbers that one instruction loads or stores.
#pragma once

#define SHIM_VECTORS(NAME, T, ALIGN_2, ALIGN_4)                                    \
    struct NAME##1 { T x; };                                                       \
    struct alignas(ALIGN_2) NAME##2 { T x, y; };                                   \
    struct NAME##3 { T x, y, z; };                                                 \
    struct alignas(ALIGN_4) NAME##4 { T x, y, z, w; };                             \
    inline NAME##1 make_##NAME##1(T x) { return {x}; }                             \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                     \
    inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }             \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

SHIM_VECTORS(char, signed char, 2, 4)
SHIM_VECTORS(uchar, unsigned char, 2, 4)
SHIM_VECTORS(short, short, 4, 8)
SHIM_VECTORS(ushort, unsigned short, 4, 8)
SHIM_VECTORS(int, int, 8, 16)
SHIM_VECTORS(uint, unsigned, 8, 16)
SHIM_VECTORS(longlong, long long, 16, 16)
SHIM_VECTORS(ulonglong, unsigned long long, 16, 16)
SHIM_VECTORS(float, float, 8, 16)
SHIM_VECTORS(double, double, 16, 16)
#undef SHIM_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 of) : x(of.x), y(of.y), z(of.z) {}
};
