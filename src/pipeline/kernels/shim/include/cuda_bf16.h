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
