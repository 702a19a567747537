// half: binary16 (IEEE 754), rounded to nearest, ties to even, as the hardware's conversions do.
#pragma once
#include "shim.h"

struct __half {
    uint16_t bits;
    __half() = default;
    inline __half(float value);
    inline operator float() const;
};
using half = __half;

namespace shim {

SHIM_OWN inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
SHIM_OWN inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

}  // namespace shim

SHIM_OWN inline __half __float2half(float value)
{
    const uint32_t all = shim::bits_of(value), sign = all >> 16 & 0x8000u, size = all & 0x7fffffffu;
    __half rounded;
    if (size > 0x7f800000u) {  // NaN
        rounded.bits = 0x7fff;
    } else if (size >= 0x477ff000u) {  // 65520, half way between the largest half and the next power of two
        rounded.bits = sign | 0x7c00u;
    } else if (size < 0x38800000u) {
        // Below 2^-14, where halves are multiples of 2^-24: so are floats from 0.5 to 1, and the addition rounds.
        rounded.bits = sign | (shim::bits_of(shim::float_of(size) + 0.5f) - 0x3f000000u);
    } else {  // the exponent loses 112, the significand 13 bits
        rounded.bits = sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    }
    return rounded;
}

namespace shim {

SHIM_OWN inline float value_of_half(uint16_t bits)
{
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size >= 0x7c00u) return float_of(sign | 0x7f800000u | size << 13);  // infinity, NaN
    const float scaled = float_of(size << 13) * 0x1p112f;                   // exact, also for subnormal halves
    return float_of(sign | bits_of(scaled));
}

}  // namespace shim

// These read and write memory for the kernel, so they are watched as its own code is. By reference: g++ does not report
// the load of a class that is passed by value.
inline float __half2float(const __half &value) { return shim::value_of_half(value.bits); }
inline __half::__half(float value) : bits(__float2half(value).bits) {}
inline __half::operator float() const { return shim::value_of_half(bits); }

#include "narrow.h"

SHIM_NARROW(__half, __half2)
using half2 = __half2;

inline __half __float2half_rn(float value) { return value; }
inline __half __float2half_rz(float value)
{
    __half rounded = value;
    if (std::fabs(float(rounded)) > std::fabs(value)) rounded.bits--;
    return rounded;
}
inline __half __double2half(double value) { return float(value); }
inline __half __int2half_rn(int value) { return float(value); }
inline int __half2int_rn(const __half &value) { return std::nearbyint(float(value)); }
inline int __half2int_rz(const __half &value) { return float(value); }
inline __half2 __float2half2_rn(float value) { return {value, value}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __half2 __float22half2_rn(float2 pair) { return {pair.x, pair.y}; }
inline float2 __half22float2(const __half2 &pair) { return {pair.x, pair.y}; }
inline __half2 __half2half2(const __half &value) { return {value, value}; }
inline __half2 __halves2half2(const __half &x, const __half &y) { return {x, y}; }
inline __half2 make_half2(const __half &x, const __half &y) { return {x, y}; }
inline __half __low2half(const __half2 &pair) { return pair.x; }
inline __half __high2half(const __half2 &pair) { return pair.y; }
inline __half __ushort_as_half(unsigned short bits)
{
    __half made;
    made.bits = bits;
    return made;
}
inline unsigned short __half_as_ushort(const __half &value) { return value.bits; }
