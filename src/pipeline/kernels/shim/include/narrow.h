// Arithmetic of a 16-bit type T and of two of them side by side: each operation is rounded to T. Arguments go by
// reference, since g++ does not report the load of a class that is passed by value.
#pragma once

#define SHIM_NARROW_OPERATION(T, PAIR, OPERATOR, NAME)                                                  \
    inline T operator OPERATOR(const T &a, const T &b) { return T(float(a) OPERATOR float(b)); }        \
    inline T &operator OPERATOR##=(T &a, const T &b) { return a = a OPERATOR b; }                       \
    inline T __h##NAME(const T &a, const T &b) { return a OPERATOR b; }                                 \
    inline PAIR operator OPERATOR(const PAIR &a, const PAIR &b) { return {a.x OPERATOR b.x, a.y OPERATOR b.y}; } \
    inline PAIR &operator OPERATOR##=(PAIR &a, const PAIR &b) { return a = a OPERATOR b; }

#define SHIM_NARROW_COMPARISON(T, OPERATOR, NAME)                                                       \
    inline bool operator OPERATOR(const T &a, const T &b) { return float(a) OPERATOR float(b); }        \
    inline bool __h##NAME(const T &a, const T &b) { return a OPERATOR b; }

#define SHIM_NARROW(T, PAIR)                                                                            \
    struct __align__(4) PAIR { T x, y; };                                                               \
    SHIM_NARROW_OPERATION(T, PAIR, +, add)                                                              \
    SHIM_NARROW_OPERATION(T, PAIR, -, sub)                                                              \
    SHIM_NARROW_OPERATION(T, PAIR, *, mul)                                                              \
    SHIM_NARROW_OPERATION(T, PAIR, /, div)                                                              \
    SHIM_NARROW_COMPARISON(T, <, lt)                                                                    \
    SHIM_NARROW_COMPARISON(T, <=, le)                                                                   \
    SHIM_NARROW_COMPARISON(T, >, gt)                                                                    \
    SHIM_NARROW_COMPARISON(T, >=, ge)                                                                   \
    SHIM_NARROW_COMPARISON(T, ==, eq)                                                                   \
    SHIM_NARROW_COMPARISON(T, !=, ne)                                                                   \
    inline T operator-(const T &a) { return T(-float(a)); }                                             \
    inline T __hneg(const T &a) { return -a; }                                                          \
    inline T __habs(const T &a) { return T(std::fabs(float(a))); }                                      \
    inline T __hmin(const T &a, const T &b) { return T(std::fmin(float(a), float(b))); }                \
    inline T __hmax(const T &a, const T &b) { return T(std::fmax(float(a), float(b))); }                \
    inline T __hfma(const T &a, const T &b, const T &c)                                                 \
    {                                                                                                   \
        return T(float(double(float(a)) * float(b) + float(c)));                                        \
    }                                                                                                   \
    inline PAIR __hadd2(const PAIR &a, const PAIR &b) { return a + b; }                                 \
    inline PAIR __hsub2(const PAIR &a, const PAIR &b) { return a - b; }                                 \
    inline PAIR __hmul2(const PAIR &a, const PAIR &b) { return a * b; }                                 \
    inline PAIR __h2div(const PAIR &a, const PAIR &b) { return a / b; }                                 \
    inline PAIR __hneg2(const PAIR &a) { return {-a.x, -a.y}; }                                         \
    inline PAIR __hfma2(const PAIR &a, const PAIR &b, const PAIR &c)                                    \
    {                                                                                                   \
        return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                          \
    }                                                                                                   \
    inline float __low2float(const PAIR &pair) { return pair.x; }                                       \
    inline float __high2float(const PAIR &pair) { return pair.y; }
