"""The shim runs CUDA kernels on a CPU as CUDA and PTX say that they run, and refuses what these leave undefined."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import RunError, UserError
from pipeline.kernels import nvrtc
from pipeline.kernels.shim.program import Argument, Array, Fault, Program, available, build

pytestmark = pytest.mark.skipif(not available(), reason="no g++")

Kernel = Callable[..., Program]


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """A kernel with this body: `kernel("float *x, int n", "x[0] = n;")`."""

    def made(parameters: str, body: str, before: str = "", dynamic: int = 0) -> Program:
        source = tmp_path / "mine.cu"
        includes = "#include <mma.h>\n#include <cuda_bf16.h>\n#include <cuda_pipeline_primitives.h>\n"
        text = f'{includes}{before}\nextern "C" __global__ void mine({parameters}) {{\n{body}\n}}\n'
        source.write_text(text)
        return build(source, "mine", dynamic=dynamic)

    return made


def column(name: str, values: np.ndarray, writable: bool = True) -> Array:
    """A vector, as a matrix of one column."""
    return Array(name, values, len(values), 1, len(values), writable)


def fault(
    program: Program, threads: int, *arguments: Argument, blocks: int = 1, seed: int = 0, steps: int = 10**6
) -> str:
    """What the shim says of a launch, which has to be refused."""
    with pytest.raises(Fault) as refused:
        program.launch((blocks, 1, 1), (threads, 1, 1), arguments, seed=seed, steps=steps)
    return str(refused.value)


# The PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and those like it: row and column of
# element i of a lane, by its group (lane / 4) and its member (lane % 4). A tile of 16 columns takes 8 of B and C twice.
def _half_a(group: int, member: int, i: int) -> tuple[int, int]:
    return group if i < 2 or 4 <= i < 6 else group + 8, member * 2 + (i & 1) + (0 if i < 4 else 8)


def _half_b(group: int, member: int, i: int) -> tuple[int, int]:
    return member * 2 + (i & 1) + (0 if i < 2 else 8), group


def _single_a(group: int, member: int, i: int) -> tuple[int, int]:
    return group if i in (0, 2) else group + 8, member if i in (0, 1) else member + 4


def _single_b(group: int, member: int, i: int) -> tuple[int, int]:
    return member if i == 0 else member + 4, group


def _byte_a(group: int, member: int, i: int) -> tuple[int, int]:
    return group if i < 4 else group + 8, member * 4 + (i & 3)


def _byte_b(group: int, member: int, i: int) -> tuple[int, int]:
    return member * 4 + i, group


def _sums(group: int, member: int, i: int) -> tuple[int, int]:
    return group if i < 2 else group + 8, member * 2 + (i & 1)


# Element type, K, elements of A, elements of B in one instruction, and how they lie.
LAYOUTS = {
    "half": (np.float16, 16, 8, 4, _half_a, _half_b),
    "__nv_bfloat16": (np.uint16, 16, 8, 4, _half_a, _half_b),
    "wmma::precision::tf32": (np.float32, 8, 4, 2, _single_a, _single_b),
    "signed char": (np.int8, 16, 8, 4, _byte_a, _byte_b),
}


@pytest.mark.parametrize(
    "type_name", [pytest.param("half"), *(pytest.param(one, marks=pytest.mark.wide) for one in list(LAYOUTS)[1:])]
)
def test_each_lane_holds_the_elements_that_ptx_says(kernel: Kernel, type_name: str) -> None:
    dtype, k, in_a, in_b, a_at, b_at = LAYOUTS[type_name]
    stored = "float" if "tf32" in type_name else type_name
    sums = "int" if type_name == "signed char" else "float"
    program = kernel(
        f"const {stored} *a, const {stored} *b, const {sums} *c, {stored} *of_a, {stored} *of_b, {sums} *of_c",
        f"""
        namespace wmma = nvcuda::wmma;
        wmma::fragment<wmma::matrix_a, 16, 16, {k}, {type_name}, wmma::row_major> tile_a;
        wmma::fragment<wmma::matrix_b, 16, 16, {k}, {type_name}, wmma::col_major> tile_b;
        wmma::fragment<wmma::accumulator, 16, 16, {k}, {sums}> tile_c;
        wmma::load_matrix_sync(tile_a, a, {k});
        wmma::load_matrix_sync(tile_b, b, {k});
        wmma::load_matrix_sync(tile_c, c, 16, wmma::mem_row_major);
        for (int i = 0; i < {in_a}; i++) of_a[threadIdx.x * {in_a} + i] = tile_a.x[i];
        for (int i = 0; i < {2 * in_b}; i++) of_b[threadIdx.x * {2 * in_b} + i] = tile_b.x[i];
        for (int i = 0; i < 8; i++) of_c[threadIdx.x * 8 + i] = tile_c.x[i];
        """,
    )
    numbers = np.arange(16 * k)
    tile = _aligned((numbers % 128 if dtype == np.int8 else numbers).astype(dtype))
    second = _aligned((numbers // 128 if dtype == np.int8 else numbers).astype(dtype))  # a byte holds no number of 256
    c = _aligned(np.arange(256).astype(np.int32 if sums == "int" else np.float32))
    found = []
    for values in (tile, second):
        outs = [np.zeros(32 * n, one.dtype) for n, one in ((in_a, tile), (2 * in_b, tile), (8, c))]
        views = [Array("a", values, k, 16, k), Array("b", values, k, 16, k), Array("c", c, 16, 16, 16)]
        program.launch((1, 1, 1), (32, 1, 1), [*views, *(column("out", one) for one in outs)])
        found.append(outs)
    high = 128 if dtype == np.int8 else 0
    of_a, of_b = (found[0][one].astype(int) + high * found[1][one].astype(int) for one in (0, 1))
    for lane in range(32):
        place = divmod(lane, 4)
        for i in range(in_a):
            row, col = a_at(*place, i)
            assert of_a[lane * in_a + i] == row * k + col
        for i in range(2 * in_b):
            row, col = b_at(*place, i % in_b)
            assert of_b[lane * 2 * in_b + i] == row + (col + 8 * (i // in_b)) * k
        for i in range(8):
            row, col = _sums(*place, i % 4)
            assert found[0][2][lane * 8 + i] == row * 16 + col + 8 * (i // 4)


def _aligned(values: np.ndarray) -> np.ndarray:
    """A copy whose address is a multiple of 32."""
    memory = np.zeros(values.nbytes + 32, np.uint8)
    begin = -memory.ctypes.data % 32
    copy = memory[begin : begin + values.nbytes].view(values.dtype)
    copy[:] = values
    return copy


def test_halves_and_bfloat16_round_as_numpy_and_to_even(kernel: Kernel) -> None:
    program = kernel(
        "const half *h, float *from_h, const float *x, half *to_h, __nv_bfloat16 *to_b, int n",
        """for (int i = threadIdx.x; i < n; i += blockDim.x) {
            from_h[i] = __half2float(h[i]);
            to_h[i] = __float2half(x[i]);
            to_b[i] = __float2bfloat16(x[i]);
        }""",
    )
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    draws = np.random.default_rng(0)
    x = draws.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        x[: 1 << 15] = (every.astype(np.float32) * (1 + draws.choice([0, 2**-11, -(2**-12)], 1 << 16)))[::2]  # ties too
        expected = x.astype(np.float16)
    out, to_h, to_b = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.float16), np.zeros(1 << 16, np.uint16)
    arrays = [column("h", every), column("f", out), column("x", x), column("t", to_h), column("b", to_b)]
    program.launch((1, 1, 1), (64, 1, 1), [*arrays, np.int32(1 << 16)])
    np.testing.assert_array_equal(out, every.astype(np.float32))
    np.testing.assert_array_equal(to_h, expected)
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(to_b[number], rounded[number])
    assert (to_b[~number] & 0x7FFF > 0x7F80).all()


def test_an_access_out_of_bounds_is_named_with_address_thread_and_line(kernel: Kernel) -> None:
    x = np.zeros(100, np.float32)
    program = kernel("const float *x, float *y", "y[threadIdx.x] = 1;\ny[threadIdx.x] += x[threadIdx.x + 1];")
    y = np.zeros(100, np.float32)
    said = fault(program, 100, column("x", x, False), column("y", y))
    assert said == (
        f"mine.cu: thread (99,0,0) of block (0,0,0): reads 4 bytes out of bounds at {hex(x.ctypes.data + 400)}, "
        "0 bytes behind the end of x (mine.cu:7)"
    )


@pytest.mark.parametrize(
    "type_name",
    [
        "half",
        pytest.param("__nv_bfloat16", marks=pytest.mark.wide),
        pytest.param("signed char", marks=pytest.mark.wide),
    ],
)
def test_a_number_that_is_converted_as_it_is_read_is_an_access_too(kernel: Kernel, type_name: str) -> None:
    x = np.zeros(4, np.int8 if type_name == "signed char" else np.uint16)
    said = fault(kernel(f"const {type_name} *x, float *y", "y[0] = float(x[4]);"), 1, column("x", x, False), _one())
    assert f"reads {x.itemsize} bytes out of bounds at {hex(x.ctypes.data + x.nbytes)}" in said
    assert said.endswith("(mine.cu:6)")
    if type_name == "signed char":
        return  # README.md of the shim says why
    shared = f"__shared__ {type_name} s[2];\ns[threadIdx.x] = 1.f;\nx[threadIdx.x] = float(s[1 - threadIdx.x]);"
    said = fault(kernel("float *x", shared), 2, column("x", np.zeros(2, np.float32)))
    assert "a race" in said or "nobody has written" in said


def _one() -> Array:
    return column("y", np.zeros(1, np.float32))


def test_what_lies_between_the_columns_of_a_matrix_belongs_to_none(kernel: Kernel) -> None:
    program = kernel("float *x", "x[threadIdx.x] = 1;")
    said = fault(program, 6, Array("x", np.zeros(24, np.float32), 5, 3, 8, writable=True))
    assert "thread (5,0,0)" in said
    assert "x[5, 0], and x has 5 rows and 3 columns" in said


def test_an_input_is_not_written(kernel: Kernel) -> None:
    said = fault(kernel("float *x", "x[3] = 1;"), 1, column("x", np.zeros(4, np.float32), False))
    assert "writes to x[3, 0], which is an input (mine.cu:6)" in said


def test_a_race_is_found_whatever_the_order(kernel: Kernel) -> None:
    body = "__shared__ float s[64];\ns[threadIdx.x] = 1;\n{}\nx[threadIdx.x] = s[63 - threadIdx.x];"
    x = np.zeros(64, np.float32)
    racing = kernel("float *x", body.format(""))
    for seed in range(3):
        said = fault(racing, 64, column("x", x), seed=seed)
        assert ("no barrier between them: a race" in said) or "where nobody has written" in said
    for barrier in ("__syncthreads();", "__syncwarp();"):
        program = kernel("float *x", body.format(barrier))
        if barrier == "__syncwarp();":
            said = fault(program, 64, column("x", x))  # the other half of the 64 is another warp
            assert "a race" in said or "nobody has written" in said
        else:
            program.launch((1, 1, 1), (64, 1, 1), [column("x", x)])
            assert (x == 1).all()


def test_a_warp_needs_no_more_than_its_own_barrier(kernel: Kernel) -> None:
    body = "__shared__ int s[32];\ns[threadIdx.x] = threadIdx.x;\n__syncwarp();\nx[threadIdx.x] = s[31 - threadIdx.x];"
    x = np.zeros(32, np.int32)
    kernel("int *x", body).launch((1, 1, 1), (32, 1, 1), [column("x", x)])
    np.testing.assert_array_equal(x, np.arange(32)[::-1])


def test_blocks_race_for_global_memory(kernel: Kernel) -> None:
    said = fault(kernel("int *x", "x[0] = blockIdx.x;"), 1, column("x", np.zeros(1, np.int32)), blocks=2)
    assert "which block" in said
    assert "a race" in said


def test_shared_memory_that_nobody_wrote_is_not_read(kernel: Kernel) -> None:
    program = kernel("float *x", "__shared__ float s[4];\nx[0] = s[0];")
    for _ in range(2):  # the second launch does not find what the first left
        assert "where nobody has written" in fault(program, 1, column("x", np.zeros(1, np.float32)))


def test_threads_in_different_barriers_are_named(kernel: Kernel) -> None:
    x = column("x", np.zeros(64, np.int32))
    halves = kernel("int *x", "if (threadIdx.x < 32) __syncthreads();\nx[threadIdx.x] = 1;")
    assert "32 threads wait in __syncthreads (line 6), 32 threads have ended" in _sorted(fault(halves, 64, x))
    two = kernel(
        "int *x", "if (threadIdx.x < 32) {\n__syncthreads();\n} else {\n__syncthreads(); }\nx[threadIdx.x] = 1;"
    )
    assert "threads are in different barriers" in fault(two, 64, x)
    lanes = kernel("int *x", "if (threadIdx.x % 2) __syncwarp();\nx[threadIdx.x] = 1;")
    assert "16 threads wait in __syncwarp (line 6)" in fault(lanes, 32, x)


def _sorted(message: str) -> str:
    head, _, places = message.rpartition(": ")
    return f"{head}: {', '.join(sorted(places.split(', '), reverse=True, key=lambda one: 'wait' in one))}"


def test_lanes_exchange_what_they_hold(kernel: Kernel) -> None:
    x = np.arange(32, dtype=np.float32)
    body = """float sum = x[threadIdx.x];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffff, sum, by);
    x[threadIdx.x] = __shfl_sync(0xffffffff, sum, 0);"""
    kernel("float *x", body).launch((1, 1, 1), (32, 1, 1), [column("x", x)])
    assert (x == 496).all()


COPY = """__shared__ __align__(16) float s[128];
__pipeline_memcpy_async(s + 4 * threadIdx.x, x + 4 * threadIdx.x, 16);
{}
y[threadIdx.x] = s[{}];"""


@pytest.mark.parametrize(
    ("between", "read", "said"),
    [
        ("__pipeline_commit();\n__pipeline_wait_prior(0);", "4 * threadIdx.x", None),
        ("__pipeline_commit();\n__pipeline_wait_prior(0);\n__syncthreads();", "127 - 4 * threadIdx.x", None),
        ("", "4 * threadIdx.x", "is on its way"),
        ("__pipeline_wait_prior(0);", "4 * threadIdx.x", "is on its way"),  # nothing was committed
        ("__pipeline_commit();\n__pipeline_wait_prior(1);", "4 * threadIdx.x", "is on its way"),
        ("__pipeline_commit();\n__syncthreads();", "127 - 4 * threadIdx.x", "is on its way"),  # a barrier does not wait
        ("__pipeline_commit();\n__pipeline_wait_prior(0);", "127 - 4 * threadIdx.x", "wrote|is on its way|nobody"),
    ],
)
@pytest.mark.wide
def test_an_asynchronous_copy_arrives_when_it_is_waited_for(
    kernel: Kernel, between: str, read: str, said: str | None
) -> None:
    x, y = _aligned(np.arange(128, dtype=np.float32)), np.zeros(32, np.float32)
    program = kernel("const float *x, float *y", COPY.format(between, read))
    arguments = [column("x", x, False), column("y", y)]
    if said is None:
        program.launch((1, 1, 1), (32, 1, 1), arguments)
        np.testing.assert_array_equal(y, x[::4] if "127" not in read else x[127::-4])
    else:
        found = fault(program, 32, *arguments)
        assert any(one in found for one in said.split("|")), found


TILE = """namespace wmma = nvcuda::wmma;
wmma::fragment<wmma::accumulator, 16, 16, 16, float> tile;
wmma::load_matrix_sync(tile, x + {}, {}, wmma::mem_row_major);"""


def test_what_hardware_refuses_is_refused(kernel: Kernel) -> None:
    x = column("x", _aligned(np.zeros(64, np.float32)))
    vector = kernel("float *x", "reinterpret_cast<float4 *>(x)[1] = *reinterpret_cast<float4 *>(x + 1);")
    assert "which is not a multiple of 16" in fault(vector, 1, x)
    assert "_sync (line 8): the tile's address has to be a multiple of 32 bytes, and is 4 bytes above one" in fault(
        kernel("float *x", TILE.format(1, 16)), 32, x
    )
    assert "leading dimension of 15 elements" in fault(kernel("float *x", TILE.format(0, 15)), 32, x)
    assert "needs a warp of 32 threads, and has 16" in fault(kernel("float *x", TILE.format(0, 16)), 16, x)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("float4 v = *reinterpret_cast<float4 *>(x + 1);\nx[0] = v.x + v.w;", "reads 16 bytes at"),
        ("float4 v = __ldg(reinterpret_cast<float4 *>(x + 1));\nx[0] = v.x;", "reads 16 bytes at"),
        ("*reinterpret_cast<float4 *>(x + 1) = make_float4(1, 2, 3, blockDim.x);", "writes 16 bytes at"),
        ("float2 v = *reinterpret_cast<float2 *>(x + 1);\nx[0] = v.x + v.y;", "reads 8 bytes at"),
        ("half2 v = *(reinterpret_cast<half2 *>(reinterpret_cast<half *>(x) + 1));\nx[0] = v.x;", "reads 4 bytes at"),
        ("float4 v = *reinterpret_cast<float4 *>(x + 4);\nx[0] = v.x + v.w;", "reads 16 bytes out of bounds at"),
    ],
)
def test_a_vector_is_one_access_whatever_is_done_with_its_parts(kernel: Kernel, body: str, said: str) -> None:
    """g++ read the parts, each of which is aligned: the kernel was right here, and a GPU refuses it."""
    whole = _aligned(np.zeros(8, np.float32))[:6]
    found = fault(kernel("float *x", body), 1, column("x", whole))
    assert said in found
    assert "which is not a multiple of" in found or "x[4, 0], and x has 6 rows" in found


def test_a_structure_of_ones_own_is_copied_from_where_its_parts_may_lie(kernel: Kernel) -> None:
    x = _aligned(np.arange(16, dtype=np.float32))
    body = """Pair p = *reinterpret_cast<Pair *>(x + 1);
    float3 v = *reinterpret_cast<float3 *>(x + 5);
    Eight e = *reinterpret_cast<Eight *>(x + 7);
    x[0] = p.a + p.b + v.x + v.z + e.v[7];"""
    before = "struct Pair { float a, b; };\nstruct Eight { float v[8]; };"
    kernel("float *x", body, before).launch((1, 1, 1), (1, 1, 1), [column("x", x)])
    assert x[0] == 1 + 2 + 5 + 7 + 14


def test_a_kernel_that_never_ends_is_stopped(kernel: Kernel) -> None:
    said = fault(kernel("int *x", "while (x[0] == 0) {}"), 1, column("x", np.zeros(1, np.int32)), steps=1000)
    assert "has not ended within the limit of steps (mine.cu:6)" in said
    empty = kernel("int n", "while (n) {}")
    said = fault(empty, 1, np.int32(1))  # whether a step is counted in it is the compiler's choice
    assert "has not ended within" in said or "is in a loop that does nothing" in said
    empty.launch((1, 1, 1), (1, 1, 1), [np.int32(0)])


def test_a_source_that_does_not_compile_is_shown_with_the_compilers_lines(kernel: Kernel) -> None:
    with pytest.raises(UserError, match=r"^mine\.cu: does not compile \(g\+\+\): .*mine\.cu:6:\d+: error: .*nothing"):
        kernel("int *x", "x[0] = nothing;")


def test_a_source_may_have_bytes_of_another_encoding(tmp_path: Path) -> None:
    source, x = tmp_path / "mine.cu", np.zeros(1, np.int32)
    source.write_text('extern "C" __global__ void mine(int *x) { x[0] = 7; int one; } // Größe\n', encoding="latin-1")
    build(source, "mine").launch((1, 1, 1), (1, 1, 1), [column("x", x)])
    assert x[0] == 7


def test_a_source_without_the_function_says_how_it_is_declared(tmp_path: Path) -> None:
    """The message was the compiler's on a file of ours: "<command-line>: error: 'gemm' was not declared"."""
    (tmp_path / "mine.cu").write_text('extern "C" __global__ void product(int *x) { x[0] = 7; }\n')
    said = r'^mine\.cu: has no function gemm; declare it extern "C" __global__ void gemm\(\.\.\.\), with the arguments'
    with pytest.raises(UserError, match=said):
        build(tmp_path / "mine.cu", "gemm")


LACKING = {
    "x[0] = __nanosleep(x[0]);": r"lacks __nanosleep \(mine\.cu:6\)",
    "x[0] = __isShared(x);": r"lacks __isShared \(mine\.cu:6\)",
    'asm volatile("bar.sync 0;");': r"lacks the PTX of an asm\(\) \(mine\.cu:6\)",
    'unsigned long long y; asm("mov.u64 %0, %1;" : "=l"(y) : "l"(x)); x[0] = y;': r"lacks the PTX of an asm\(\) \(mine",
    "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 32, 8, 16, half, nvcuda::wmma::row_major> a;": "lacks the shape: "
    "it has 16x16x16 tiles",
    "x[0] = clock64();": r"lacks clock64 \(mine\.cu:6\)",
}


@pytest.mark.parametrize("body", LACKING)
def test_what_the_shim_lacks_of_cuda_is_named_with_its_line(kernel: Kernel, body: str) -> None:
    """The message read as if CUDA did not have it either."""
    whole = "__nanosleep(x[0]);" if "nanosleep" in body else body
    by_nvrtc = "NVRTC compiles the kernel for a GPU, where it may be right"
    known = by_nvrtc if nvrtc.missing_packages() is None else "if CUDA has it, the kernel may be right on a GPU"
    with pytest.raises(UserError) as refused:
        kernel("unsigned *x", whole)
    assert re.fullmatch(
        rf"mine\.cu: the shim, by which a CPU runs a kernel to verify it, {LACKING[body]}.*; {known}: verify it there, "
        r"or keep the line from the shim by #ifdef __CUDA_ARCH__",
        str(refused.value),
    )


def test_a_line_that_is_kept_from_the_shim_does_not_count(kernel: Kernel) -> None:
    x = np.zeros(1, np.uint32)
    kernel("unsigned *x", "#ifdef __CUDA_ARCH__\n__nanosleep(8);\n#endif\nx[0] = 1;").launch(
        (1, 1, 1), (1, 1, 1), [column("x", x)]
    )
    assert x[0] == 1


def test_a_header_that_neither_has_is_named_with_what_brings_it(kernel: Kernel) -> None:
    with pytest.raises(UserError, match=r"no_such\.h") as refused:
        kernel("unsigned *x", "x[0] = 1;", '#include "no_such.h"')
    assert ("none of the host's headers" in str(refused.value)) == (nvrtc.missing_packages() is None)


# Of a thread t of 64, and y[i] = i: what a course uses, and what x[t] then is.
COURSE: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "loads past a cache": ("", "x[t] = __ldg(y + t) + __ldcs(&y[t]); __stcs(&x[t], x[t]);", lambda t: 2 * t),
    "vectors": (
        "",
        "float4 v = *reinterpret_cast<const float4 *>(y + t / 4 * 4); x[t] = v.w;",
        lambda t: t // 4 * 4 + 3,
    ),
    "make": ("", "float2 p = make_float2(t, 1); int3 q = make_int3(1, 2, t); x[t] = p.x + q.z;", lambda t: 2 * t),
    "mixed": (
        "",
        "x[t] = min(t, 5) + max(t, 7u) + min(y[t], 3.0f);",
        lambda t: _least(t, 5) + _most(t, 7) + _least(t, 3),
    ),
    "bits": ("", "x[t] = __popc(t) + __clz(t) + __ffs(t);", lambda t: np.array([_bits(int(one)) for one in t])),
    "bytes": ("", "x[t] = __dp4a(0x01010101, 0x0201ff03, int(t));", lambda t: t + 5),
    "unsigned bytes": ("", "unsigned ones = 0x01010101; x[t] = __dp4a(0xff000002u, ones, t);", lambda t: t + 257),
    "vectors of bytes": (
        "",
        "x[t] = __dp4a(make_uchar4(255, 1, 0, 0), make_uchar4(255, 2, 0, 0), t);",
        lambda t: t + 65027,
    ),
    "groups of an xor shuffle": ("", "x[t] = __shfl_xor_sync(~0u, y[t], 8, 8);", lambda t: np.where(t & 8, t - 8, t)),
    "a sum of short numbers": ("", "short n = 3000; x[t] = __reduce_add_sync(~0u, n);", lambda t: 0 * t + 96000),
    "an up shuffle": ("", "x[t] = __shfl_up_sync(~0u, y[t], 1);", lambda t: np.where(t % 32, t - 1, t)),
    "a narrow shuffle": ("", "x[t] = __shfl_down_sync(~0u, y[t], 3, 8);", lambda t: np.where(t % 8 < 5, t + 3, t)),
    "a narrow broadcast": ("", "x[t] = __shfl_sync(~0u, y[t], 10, 8);", lambda t: t // 8 * 8 + 2),
    "a vote": (
        "",
        "x[t] = __popc(__ballot_sync(~0u, t < 40)) + 100 * __any_sync(~0u, t > 60);",
        lambda t: np.where(t < 32, 32, 108),
    ),
    "all": ("", "x[t] = __all_sync(~0u, t < 32);", lambda t: t < 32),
    "a sum of lanes": ("", "x[t] = __reduce_add_sync(~0u, t % 32);", lambda t: 0 * t + 496),
    "a count": (
        "",
        "x[t] = __syncthreads_count(t < 9) + 100 * __syncthreads_or(t == 3) + __syncthreads_and(t < 9);",
        lambda t: 0 * t + 109,
    ),
    "an atomic sum": (
        "__shared__ int n;",
        "if (t == 0) n = 0;\n__syncthreads();\natomicAdd(&n, 2);\n__syncthreads();\nx[t] = n;",
        lambda t: 0 * t + 128,
    ),
    "a largest": (
        "__shared__ unsigned n;",
        "if (t == 0) n = 0;\n__syncthreads();\natomicMax(&n, t);\n__syncthreads();\nx[t] = n;",
        lambda t: 0 * t + 63,
    ),
    "pairs": (
        "",
        "half2 a = __float2half2_rn(y[t]), b = __halves2half2(half(1), half(2)); a = __hfma2(a, b, b);\n"
        "x[t] = __low2float(a) + __high2float(a);",
        lambda t: 3 * t + 3,
    ),
    "half": (
        "",
        "half a = y[t]; a += a * half(2); a = -__hadd(a, half(1)); x[t] = __half2float(a);",
        lambda t: -3 * t - 1,
    ),
    "rounding": ("", "half a = __hadd(half(2048), half(1)); x[t] = float(a);", lambda t: 0 * t + 2048),
    "bfloat16": (
        "",
        "__nv_bfloat16 a = __float2bfloat16(y[t]); x[t] = __bfloat162float(a * __float2bfloat16(2));",
        lambda t: 2 * t,
    ),
    "constants": (
        "__constant__ float table[2] = {3, 4};\n__device__ const int other[2] = {1, 2};",
        "const int *p = other; x[t] = table[t % 2] + p[t % 2];",
        lambda t: 4 + 2 * (t % 2),
    ),
    "a variable": ("__device__ unsigned n;", "atomicAdd(&n, 1);\n__syncthreads();\nx[t] = n;", lambda t: 0 * t + 64),
    "groups": (
        "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;",
        "auto block = cg::this_thread_block();\nauto tile = cg::tiled_partition<16>(block);\nblock.sync();\n"
        "x[t] = cg::reduce(tile, y[t], cg::plus<float>()) + tile.thread_rank();",
        lambda t: 256 * (t // 16) + 120 + t % 16,
    ),
    "aligned": (
        "#include <cuda_runtime.h>",
        "__shared__ alignas(16) float s[64];\ns[t] = y[t];\n__syncthreads();\n"
        "float4 v = reinterpret_cast<float4 *>(s)[t / 4];\nx[t] = v.x;",
        lambda t: t // 4 * 4,
    ),
    "aligned as a type": (
        "struct alignas(float4) Four { float v[4]; };\n"
        "template <class T, int N> struct alignas(sizeof(T) * N) Many { T v[N]; };",
        "__shared__ alignas(float4) float s[4];\nalignas(double2) float own[4];\n"
        "x[t] = alignof(Four) + alignof(Many<half, 4>) + alignof(s) + alignof(own);",
        lambda t: 0 * t + 16 + 8 + 16 + 16,
    ),
    "asserted": (
        "__device__ __noinline__ float twice(float of) { return 2 * of; }",
        "assert(t < 64); x[t] = twice(fmaf(y[t], 1, 0)) * __saturatef(9) * rsqrtf(1) + isnan(y[t]);",
        lambda t: 2 * t,
    ),
}


def _least(t: np.ndarray, other: int) -> np.ndarray:
    return np.minimum(t, other)


def _most(t: np.ndarray, other: int) -> np.ndarray:
    return np.maximum(t, other)


def _bits(number: int) -> int:
    return number.bit_count() + 32 - number.bit_length() + (number & -number).bit_length()


@pytest.mark.parametrize("what", COURSE)
def test_what_a_course_of_cuda_uses_is_computed(kernel: Kernel, what: str) -> None:
    before, body, expected = COURSE[what]
    x, y = np.full(64, np.nan, np.float32), np.arange(64, dtype=np.float32)
    program = kernel("float *x, const float *y", f"unsigned t = threadIdx.x;\n{body}", before)
    program.launch((1, 1, 1), (64, 1, 1), [column("x", x), column("y", y, writable=False)])
    np.testing.assert_array_equal(x, np.asarray(expected(np.arange(64)), np.float32))


DYNAMIC = "extern {}__shared__ {}float room[];"


@pytest.mark.parametrize("before", ["", "__align__(16) ", "// extern __shared__ int other[];\n"])
def test_dynamic_shared_memory_is_found_however_it_is_declared(kernel: Kernel, before: str) -> None:
    x = np.zeros(32, np.float32)
    declared = before + DYNAMIC.format("", "") if "//" in before else DYNAMIC.format(before, "__align__(16) ")
    body = "room[threadIdx.x] = threadIdx.x;\nx[threadIdx.x] = room[threadIdx.x];"
    kernel("float *x", body, declared, dynamic=128).launch((1, 1, 1), (32, 1, 1), [column("x", x)])
    np.testing.assert_array_equal(x, np.arange(32))


def test_two_names_of_dynamic_shared_memory_are_refused(kernel: Kernel) -> None:
    """It was an OSError: an undefined symbol of a file in the cache."""
    two = DYNAMIC.format("", "") + "\nextern __shared__ half other[];"
    with pytest.raises(UserError, match=r"^mine\.cu: declares its dynamic shared memory as room, other, which CUDA"):
        kernel("float *x", "x[0] = room[0] + float(other[0]);", two, dynamic=128)
    declared = kernel("float *x", "x[0] = lost[threadIdx.x];", "extern float lost[];")
    with pytest.raises(UserError, match=r"^mine\.cu: does not load: undefined symbol: lost$"):
        declared.launch((1, 1, 1), (1, 1, 1), [column("x", np.zeros(1, np.float32))])


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("float *x", "has 1 parameter, and is called with 2"),
        ("float *x, double by", "parameter 2 is a real number of 8 bytes, and gets a real number of 4 bytes"),
        ("float *x, int by", "parameter 2 is a whole number of 4 bytes, and gets a real number of 4 bytes"),
        ("float *x, half by", "parameter 2 is a class of 2 bytes, and gets a real number of 4 bytes"),
        ("float x, float by", "parameter 1 is a real number of 4 bytes, and gets a pointer of 8 bytes"),
    ],
)
def test_parameters_that_are_not_those_of_the_launch_are_named(kernel: Kernel, parameters: str, said: str) -> None:
    """A kernel without beta was right until a problem had one, and a double was whatever lay there."""
    program = kernel(parameters, "")
    with pytest.raises(UserError) as refused:
        program.launch((1, 1, 1), (1, 1, 1), [column("x", np.zeros(1, np.float32)), np.float32(1)])
    assert str(refused.value) == f"mine.cu: {said}"


def test_sums_in_half_are_rounded_to_half(kernel: Kernel) -> None:
    """As the first Tensor Cores had them: the shim lacked the fragment."""
    body = """using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> sums;
    wmma::fill_fragment(a, half(1)); wmma::fill_fragment(b, half(1)); wmma::fill_fragment(sums, half(4096));
    wmma::mma_sync(sums, a, b, sums);
    wmma::fill_fragment(b, half(1.0f / 16));
    wmma::mma_sync(sums, a, b, sums);
    x[threadIdx.x] = sums.x[0];"""
    x = np.zeros(32, np.float32)
    kernel("float *x", body).launch((1, 1, 1), (32, 1, 1), [column("x", x)])
    assert (x == 4112).all()  # 4113 lies between two halves


def test_what_atomics_do_not_order_is_a_race(kernel: Kernel) -> None:
    x = np.zeros(1, np.float32)
    program = kernel("float *x", "atomicAdd(x, 1);")
    program.launch((3, 1, 1), (64, 1, 1), [column("x", x)])
    assert x[0] == 192
    plain = kernel("float *x", "atomicAdd(x, 1);\nif (threadIdx.x == 5) x[0] = 0;")
    assert re.search(r"writes x\[0, 0\] .*, which thread \d+ wrote .*: a race", fault(plain, 64, column("x", x)))
    first = kernel("float *x", "if (threadIdx.x == 0) x[0] = 0;\natomicAdd(x, 1);")
    for seed in range(8):  # whichever of the two is first; its own atomic hid what thread 0 wrote before
        assert "a race" in fault(first, 2, column("x", x), seed=seed)
    fresh = kernel("float *x", "__shared__ int n;\natomicAdd(&n, 1);")
    assert "where nobody has written" in fault(fresh, 32, column("x", x))
    variable = kernel("float *x", "n = threadIdx.x;", "__device__ int n;")
    said = (
        r"writes variables of the file\[\d+, 0\] \(mine\.cu:6\), which thread \d+ wrote \(mine\.cu:6\) with no barrier"
    )
    assert re.search(said, fault(variable, 32, column("x", x)))
    table = "__device__ const float table[2] = {1, 2};"
    constant = kernel("float *x", "const_cast<float *>(table)[threadIdx.x] = 1;", table)
    assert "which is an input" in fault(constant, 1, column("x", x))


def test_a_kernel_prints_and_traps_as_in_cuda(kernel: Kernel, capfd: pytest.CaptureFixture[str]) -> None:
    """Both are there without a header, in nvcc as in NVRTC."""
    program = kernel("int n", 'if (n) __trap(); printf("thread %d\\n", threadIdx.x);')
    program.launch((1, 1, 1), (2, 1, 1), [np.int32(0)])
    ctypes.CDLL(None).fflush(None)
    assert sorted(capfd.readouterr().out.splitlines()) == ["thread 0", "thread 1"]
    assert "thread (0,0,0) of block (0,0,0): calls __trap" in fault(program, 1, np.int32(1))


def test_threads_are_counted_as_english_does(kernel: Kernel) -> None:
    program = kernel("int n", "if (threadIdx.x == 0) __syncthreads();")
    assert "1 thread waits in __syncthreads (line 6), 63 threads have ended" in _sorted(fault(program, 64, np.int32(0)))
    program = kernel("int n", "if (threadIdx.x) __syncthreads();")
    assert "63 threads wait in __syncthreads (line 6), 1 thread has ended" in _sorted(fault(program, 64, np.int32(0)))


def test_the_order_of_threads_is_drawn_from_the_seed(kernel: Kernel) -> None:
    program = kernel("int *x", "x[threadIdx.x] = 1;")  # all are out of bounds; the first to run is refused
    x = column("x", np.zeros(0, np.int32))
    first = [fault(program, 32, x, seed=seed) for seed in range(8)]
    assert len(set(first)) > 1
    assert [fault(program, 32, x, seed=seed) for seed in range(8)] == first


def test_a_fault_is_of_the_run_not_of_the_user() -> None:
    assert issubclass(Fault, RunError)
