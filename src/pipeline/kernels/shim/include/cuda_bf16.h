// bfloat16: the upper 16 bits of a float, rounded to nearest, ties to even.
#pragma once
#include "cuda_fp16.h"

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    inline __nv_bfloat16(float value);
    inline operator float() const;
};

SHIM_OWN inline __nv_bfloat16 __float2bfloat16(float value)
{
    const uint32_t all = shim::bits_of(value);
    __nv_bfloat16 rounded;
    rounded.bits = std::isnan(value) ? 0x7fff : (all + 0x7fffu + (all >> 16 & 1u)) >> 16;
    return rounded;
}

namespace shim {
SHIM_OWN inline float value_of_bfloat16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }
}  // namespace shim

inline float __bfloat162float(const __nv_bfloat16 &value) { return shim::value_of_bfloat16(value.bits); }
inline __nv_bfloat16::operator float() const { return shim::value_of_bfloat16(bits); }
inline __nv_bfloat16::__nv_bfloat16(float value) : bits(__float2bfloat16(value).bits) {}

SHIM_NARROW(__nv_bfloat16, __nv_bfloat162)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline __nv_bfloat162 __float2bfloat162_rn(float value) { return {value, value}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline float2 __bfloat1622float2(const __nv_bfloat162 &pair) { return {pair.x, pair.y}; }
inline __nv_bfloat162 __bfloat162bfloat162(const __nv_bfloat16 &value) { return {value, value}; }
inline __nv_bfloat162 __halves2bfloat162(const __nv_bfloat16 &x, const __nv_bfloat16 &y) { return {x, y}; }
inline __nv_bfloat16 __low2bfloat16(const __nv_bfloat162 &pair) { return pair.x; }
inline __nv_bfloat16 __high2bfloat16(const __nv_bfloat162 &pair) { return pair.y; }
