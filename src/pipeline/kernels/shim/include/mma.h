// nvcuda::wmma: a warp multiplies 16×16 tiles, and each of its 32 lanes holds some elements of every tile.
//
// CUDA leaves open which lane holds which element. Here it is the layout that PTX states for `mma.sync` ("Matrix
// Fragments for mma.m16n8k16", mma.m16n8k8 for TF32), of which one 16×16 tile takes two: group = lane / 4 and
// member = lane % 4 give an element's row and column. tests/test_shim.py compares it with the tables of the PTX ISA.
// The types, their numbers of elements and the demands on pointers and leading dimensions are those of CUDA's header.
#pragma once
#include <type_traits>

#include "cuda_bf16.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

// TF32 keeps 10 bits of a float's significand; cvt.rna rounds to nearest, ties away from zero.
SHIM_OWN inline float __float_to_tf32(float value) { return shim::float_of((shim::bits_of(value) + 0x1000u) & 0xffffe000u); }

template <class T>
struct Element { using stored = T; };
template <>
struct Element<precision::tf32> { using stored = float; };

// How many elements a lane holds. Of half A and B tiles it holds 16, each element twice (as the first Tensor Cores
// wanted it); the shim's mma reads the first 8.
template <class Use, class T, int K>
constexpr int elements = std::is_same_v<Use, accumulator> ? 8 : std::is_same_v<T, __half> ? 16 : K / 2;

template <class Use, int M, int N, int K, class T, class Layout = void>
struct __align__(8) fragment {
    static_assert(M == 16 && N == 16 && (K == 16 || K == 8), "the shim has 16x16x16 tiles, and 16x16x8 of TF32");
    static_assert(K == 16 || std::is_same_v<Use, accumulator> || std::is_same_v<T, precision::tf32>, "K = 8 is TF32's");
    using Stored = typename Element<T>::stored;
    static constexpr int num_elements = elements<Use, T, K>;
    Stored x[num_elements];
    SHIM_OWN fragment() { memset(x, 0xff, sizeof x); }  // NaN: registers hold anything before they are written
};

}  // namespace nvcuda::wmma

namespace shim {

struct Position { int row, column; };

// Where in its tile element `i` of `lane` lies. A is M×K, B is K×N, the accumulator M×N.
template <class Use, class T>
SHIM_OWN constexpr Position position(int lane, int i)
{
    using namespace nvcuda::wmma;
    const int group = lane / 4, member = lane % 4;
    if (std::is_same_v<Use, accumulator>)  // c0 c1 in a row, c2 c3 eight rows below; then the right half of the tile
        return {group + i / 2 % 2 * 8, member * 2 + i % 2 + i / 4 * 8};
    constexpr bool of_a = std::is_same_v<Use, matrix_a>;
    if (std::is_same_v<T, precision::tf32>)
        return of_a ? Position{group + i % 2 * 8, member + i / 2 * 4} : Position{member + i % 2 * 4, group + i / 2 * 8};
    if (sizeof(typename Element<T>::stored) == 1)  // four bytes of a register lie side by side along K
        return of_a ? Position{group + i / 4 * 8, member * 4 + i % 4} : Position{member * 4 + i % 4, group + i / 4 * 8};
    i %= 8;  // the second copy
    return of_a ? Position{group + i / 2 % 2 * 8, member * 2 + i % 2 + i / 4 * 8}
                : Position{member * 2 + i % 2 + i / 2 % 2 * 8, group + i / 4 * 8};
}

// CUDA's demands on the memory that a tile is loaded from or stored to.
template <class T>
SHIM_CALL void check_tile(const char *call, int line, const T *tile, unsigned leading)
{
    if (reinterpret_cast<uintptr_t>(tile) % 32)
        refuse("%s (line %d): the tile's address has to be a multiple of 32 bytes, and is %zu bytes above one", call, line,
               size_t(reinterpret_cast<uintptr_t>(tile) % 32));
    if (leading * sizeof(T) % 16)
        refuse("%s (line %d): a leading dimension of %u elements is not a multiple of 16 bytes", call, line, leading);
}

template <class T>
SHIM_OWN T *element_at(T *tile, Position at, unsigned leading, bool by_rows)
{
    return tile + (by_rows ? at.row * size_t(leading) + at.column : at.row + at.column * size_t(leading));
}

template <class Use, int K, class T, class Layout>
SHIM_CALL void load(nvcuda::wmma::fragment<Use, 16, 16, K, T, Layout> &to,
                     const typename nvcuda::wmma::Element<T>::stored *tile, unsigned leading, bool by_rows, int line,
                     const void *from)
{
    warp_collective("load_matrix_sync", line, 0xffffffffu, false, nullptr, [](void **) {});
    check_tile("load_matrix_sync", line, tile, leading);
    for (int i = 0; i < to.num_elements; i++) {
        const auto *element = element_at(tile, position<Use, T>(lane(), i), leading, by_rows);
        access(element, sizeof *element, false, from);
        to.x[i] = *element;
    }
}

// One lane's four fragments in a call of mma_sync.
template <class T, class Sum, int K, class LayoutA, class LayoutB>
struct Mma {
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, K, Sum> *d;
    const nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, K, T, LayoutA> *a;
    const nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, K, T, LayoutB> *b;
    const nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, K, Sum> *c;
};

// What the Tensor Core multiplies: of a TF32 operand it ignores the lower 13 bits.
template <class T, class Stored>
SHIM_OWN auto operand(Stored value)
{
    if constexpr (std::is_same_v<T, nvcuda::wmma::precision::tf32>) return float_of(bits_of(value) & 0xffffe000u);
    else if constexpr (sizeof(Stored) == 1) return int(value);
    else if constexpr (std::is_same_v<Stored, __half>) return value_of_half(value.bits);
    else if constexpr (std::is_same_v<Stored, __nv_bfloat16>) return value_of_bfloat16(value.bits);
    else return value;
}

// The matrix product of a warp: gathers A and B from the lanes, multiplies, and gives each lane its sums. A Tensor Core
// adds in an order and with a rounding that NVIDIA does not state; this one adds in the order of k, in float where Sum
// is half, which is rounded once.
template <class T, class Sum, int K, class LayoutA, class LayoutB>
SHIM_CALL void multiply(void **lanes)
{
    using namespace nvcuda::wmma;
    using Lane = Mma<T, Sum, K, LayoutA, LayoutB>;
    decltype(operand<T>(typename Element<T>::stored())) a[16][K], b[K][16];
    std::conditional_t<std::is_same_v<Sum, __half>, float, Sum> sum[16][16];
    for (int lane = 0; lane < 32; lane++) {
        const Lane &mine = *static_cast<const Lane *>(lanes[lane]);
        for (int i = 0; i < K / 2; i++) {
            const Position in_a = position<matrix_a, T>(lane, i), in_b = position<matrix_b, T>(lane, i);
            a[in_a.row][in_a.column] = operand<T>(mine.a->x[i]);
            b[in_b.row][in_b.column] = operand<T>(mine.b->x[i]);
        }
        for (int i = 0; i < 8; i++) {
            const Position in_c = position<accumulator, Sum>(lane, i);
            sum[in_c.row][in_c.column] = mine.c->x[i];
        }
    }
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < K; k++)
            for (int n = 0; n < 16; n++) sum[m][n] += a[m][k] * b[k][n];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 8; i++) {
            const Position in_d = position<accumulator, Sum>(lane, i);
            static_cast<const Lane *>(lanes[lane])->d->x[i] = sum[in_d.row][in_d.column];
        }
}

}  // namespace shim

namespace nvcuda::wmma {

template <class Use, int M, int N, int K, class T, class Layout>
SHIM_OWN void fill_fragment(fragment<Use, M, N, K, T, Layout> &tile, typename Element<T>::stored value)
{
    for (auto &element : tile.x) element = value;
}

template <class Use, int M, int N, int K, class T, class Layout>
SHIM_CALL void load_matrix_sync(fragment<Use, M, N, K, T, Layout> &to, const typename Element<T>::stored *tile,
                                 unsigned leading, int line = __builtin_LINE())
{
    shim::load(to, tile, leading, std::is_same_v<Layout, row_major>, line, __builtin_return_address(0));
}

template <int M, int N, int K, class T>
SHIM_CALL void load_matrix_sync(fragment<accumulator, M, N, K, T> &to, const T *tile, unsigned leading,
                                 layout_t layout, int line = __builtin_LINE())
{
    shim::load(to, tile, leading, layout == mem_row_major, line, __builtin_return_address(0));
}

template <int M, int N, int K, class T>
SHIM_CALL void store_matrix_sync(T *tile, const fragment<accumulator, M, N, K, T> &from, unsigned leading,
                                  layout_t layout, int line = __builtin_LINE())
{
    shim::warp_collective("store_matrix_sync", line, 0xffffffffu, false, nullptr, [](void **) {});
    shim::check_tile("store_matrix_sync", line, tile, leading);
    for (int i = 0; i < from.num_elements; i++) {
        const auto at = shim::position<accumulator, T>(shim::lane(), i);
        T *element = shim::element_at(tile, at, leading, layout == mem_row_major);
        shim::access(element, sizeof *element, true, __builtin_return_address(0));
        *element = from.x[i];
    }
}

template <int M, int N, int K, class T, class Sum, class LayoutA, class LayoutB>
SHIM_CALL void mma_sync(fragment<accumulator, M, N, K, Sum> &d, const fragment<matrix_a, M, N, K, T, LayoutA> &a,
                         const fragment<matrix_b, M, N, K, T, LayoutB> &b,
                         const fragment<accumulator, M, N, K, Sum> &c, int line = __builtin_LINE())
{
    shim::Mma<T, Sum, K, LayoutA, LayoutB> mine{&d, &a, &b, &c};
    shim::warp_collective("mma_sync", line, 0xffffffffu, false, &mine, shim::multiply<T, Sum, K, LayoutA, LayoutB>);
}

}  // namespace nvcuda::wmma
