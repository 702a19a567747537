// Functions of one thread: comparisons, bits, fast arithmetic, loads and stores past a cache. What a GPU only
// approximates is exact here.
#pragma once
#include <cmath>
#include <type_traits>

// Of two types, as CUDA's overloads; of a NaN and a number the number.
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
    else return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
    else return T(a) < T(b) ? T(b) : T(a);
}

using std::isinf;
using std::isnan;

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
inline int __clzll(long long bits) { return bits ? __builtin_clzll(bits) : 64; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __brev(unsigned bits)
{
    unsigned reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (bits >> i & 1) << (31 - i);
    return reversed;
}
inline int __mulhi(int a, int b) { return static_cast<long long>(a) * b >> 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned long long>(a) * b >> 32; }
inline int __mul24(int a, int b) { return static_cast<long long>(a << 8 >> 8) * (b << 8 >> 8); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }

// The sum of four products of bytes and `sum`.
inline int __dp4a(int a, int b, int sum)
{
    for (int i = 0; i < 32; i += 8) sum += static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i);
    return sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum)
{
    for (int i = 0; i < 32; i += 8) sum += (a >> i & 0xffu) * (b >> i & 0xffu);
    return sum;
}
inline int __dp4a(char4 a, char4 b, int sum) { return sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned sum) { return sum + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

namespace shim {
template <class To, class From>
To same_bits(From from)
{
    To to;
    static_assert(sizeof to == sizeof from);
    memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace shim

inline int __float_as_int(float value) { return shim::same_bits<int>(value); }
inline unsigned __float_as_uint(float value) { return shim::same_bits<unsigned>(value); }
inline float __int_as_float(int bits) { return shim::same_bits<float>(bits); }
inline float __uint_as_float(unsigned bits) { return shim::same_bits<float>(bits); }
inline int __float2int_rn(float value) { return std::nearbyint(value); }
inline int __float2int_rz(float value) { return value; }
inline float __int2float_rn(int value) { return value; }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float rsqrtf(float a) { return 1 / std::sqrt(a); }
inline float __saturatef(float a) { return std::fmin(std::fmax(a, 0.0f), 1.0f); }
inline float __expf(float a) { return std::exp(a); }
inline float __logf(float a) { return std::log(a); }
inline float __log2f(float a) { return std::log2(a); }
inline float __powf(float a, float b) { return std::pow(a, b); }
inline float __sinf(float a) { return std::sin(a); }
inline float __cosf(float a) { return std::cos(a); }

template <class T>
T __ldg(const T *from) { return *from; }
template <class T>
T __ldcg(const T *from) { return *from; }
template <class T>
T __ldca(const T *from) { return *from; }
template <class T>
T __ldcs(const T *from) { return *from; }
template <class T>
void __stcg(T *to, T value) { *to = value; }
template <class T>
void __stcs(T *to, T value) { *to = value; }
template <class T>
void __stwt(T *to, T value) { *to = value; }
