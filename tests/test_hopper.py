"""The shim's Hopper: mbarriers, TMA and wgmma do what the PTX ISA says, and what it leaves undefined is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.kernels.cuda.source import placed
from pipeline.kernels.shim.program import Argument, Array, Boxes, Fault, Program, available, build

pytestmark = pytest.mark.skipif(not available(), reason="no g++")

Kernel = Callable[..., Program]
THREADS, COLUMNS = 128, 128


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """A kernel with this body and 64 KB of shared memory, `memory`."""

    def made(parameters: str, body: str) -> Program:
        source = tmp_path / "mine.cu"
        source.write_text(
            "#include <hopper.cuh>\n#include <cuda_fp16.h>\n"
            "extern __shared__ __align__(1024) unsigned char memory[];\n"
            f'extern "C" __global__ void mine({parameters}) {{\n{body}\n}}\n'
        )
        return build(source, "mine", dynamic=1 << 16)

    return made


def launched(program: Program, threads: int, *arguments: Argument, seed: int = 0) -> str | None:
    """What the shim refuses; None where it refuses nothing."""
    try:
        program.launch((1, 1, 1), (threads, 1, 1), arguments, seed=seed, steps=10**6)
    except Fault as fault:
        return str(fault)
    return None


def vector(name: str, values: np.ndarray) -> Array:
    """What a kernel writes."""
    return Array(name, values, len(values), 1, len(values), writable=True)


def halves(rows: int, columns: int) -> np.ndarray:
    """Small integers, of which every sum is exact; column by column, where TMA can read them."""
    return placed(np.random.default_rng(rows).integers(-4, 5, rows * columns).astype(np.float16))


# Thread 0 makes a barrier behind the boxes, and brings a box of 64 rows and 8 columns that begins at (40, 2).
COPY = """
Barrier &full = *reinterpret_cast<Barrier *>(memory + 32768);
if (threadIdx.x == 0) { barrier_init(full, 1); fence_async(); }
__syncthreads();
if (threadIdx.x == 0) { barrier_expect(full, 64 * 8 * 2); copy_box(memory, map, full, 40, 2); }
barrier_wait(full, 0);
const half *box = reinterpret_cast<const half *>(memory);
for (int i = threadIdx.x; i < 64 * 8; i += blockDim.x) y[i] = box[i];
"""


def copied(program: Program) -> tuple[str | None, np.ndarray, np.ndarray]:
    """What is refused; the matrix; the box as it lies in shared memory."""
    x, y = halves(72, 9), np.zeros(64 * 8, np.float32)
    matrix = Array("x", x, 72, 9, 72)
    said = launched(program, 64, Boxes(matrix, 64, 8), vector("y", y), matrix)
    return said, x.reshape(9, 72).T, y


@pytest.mark.wide
def test_tma_swaps_the_chunks_of_a_line_and_fills_up_with_zeros(kernel: Kernel) -> None:
    said, x, y = copied(kernel("const __grid_constant__ TensorMap map, float *y, const half *x", COPY))
    assert said is None
    expected = np.zeros((64, 8), np.float32)
    expected[:32, :7] = x[40:72, 2:9]  # 32 rows and a column stick out
    for line in range(8):
        for chunk in range(8):  # the 128-byte swizzle
            place = line * 64 + (chunk ^ line) * 8
            np.testing.assert_array_equal(y[place : place + 8], expected[chunk * 8 : chunk * 8 + 8, line])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("barrier_wait(full, 0);", ""), "is on its way|nobody has written"),
        (("barrier_wait(full, 0);", "__syncthreads();"), "is on its way"),
        (("barrier_wait(full, 0);", "if (threadIdx.x) barrier_wait(full, 0);"), "is on its way|which TMA wrote"),
        (("fence_async();", ""), "without fence_async since"),
        (("__syncthreads();", ""), "a race|nobody has written"),
        (("barrier_init(full, 1);", ""), "nobody has written|barrier_init has not made"),
        (("barrier_init(full, 1);", "barrier_init(full, 2);"), r"waits for ever: .*wait in barrier_wait \(line \d+\)"),
        (("64 * 8 * 2);", "64 * 8);"), "1024 bytes arrive at a barrier where 512 were announced"),
        (("64 * 8 * 2);", "64 * 9 * 2);"), "waits for ever"),
        (
            ("barrier_wait(full, 0);", "barrier_wait(full, 1);"),
            "is on its way|nobody has written",
        ),  # over, on a new barrier
        (("copy_box(memory,", "copy_box(memory + 512,"), "the swizzle begins at multiples of 1,024"),
        (("memory + 32768", "memory + 32772"), "not a multiple of"),
        (("copy_box(memory, map, full, 40, 2);", "barrier_arrive(full);"), "waits for nobody any more|waits for ever"),
        (
            ("barrier_wait(full, 0);", "return;"),
            r"cu: the block ends, and nobody has waited for a copy by TMA \(mine\.cu:",
        ),
        (("y[i] = box[i];", "{ y[i] = box[i]; reinterpret_cast<half *>(memory)[(i + 1) % 512] = x[0]; }"), "a race"),
    ],
)
def test_a_copy_is_there_when_its_barrier_says_so(kernel: Kernel, change: tuple[str, str], said: str) -> None:
    assert change[0] in COPY
    program = kernel("const __grid_constant__ TensorMap map, float *y, const half *x", COPY.replace(*change))
    found = copied(program)[0]
    assert found is not None and re.search(said, found), found
    assert "\n" not in found


@pytest.mark.wide
def test_a_tensor_map_beyond_its_matrix_is_refused(kernel: Kernel) -> None:
    program = kernel("const __grid_constant__ TensorMap map, float *y, const half *x", COPY)
    x, y = halves(72, 9), np.zeros(64 * 8, np.float32)
    matrix, larger = Array("x", x, 70, 9, 72), Array("x", x, 72, 9, 72)
    said = launched(program, 64, Boxes(larger, 64, 8), vector("y", y), matrix)
    assert said is not None and "out of bounds" in said
    odd = Array("x", x[1:], 71, 8, 72)
    said = launched(program, 64, Boxes(odd, 64, 8), vector("y", y), odd)
    assert said is not None and "what TMA cannot read" in said


@pytest.mark.parametrize(
    ("rows", "columns", "leading", "said"),
    [
        (64, 256, 72, None),
        (64, 257, 72, "x in boxes of 64×257: TMA copies 256 rows and columns at most"),
        (72, 8, 72, "x in boxes of 72×8: a column has 144 bytes, and the swizzle takes 128"),
        (64, 8, 2**39 - 8, None),
        (64, 8, 2**39, "x in boxes of 64×8: columns are 1,099,511,627,776 bytes apart; TMA takes less than 2^40"),
    ],
)
def test_a_tensor_map_that_cuda_refuses_is_refused(rows: int, columns: int, leading: int, said: str | None) -> None:
    matrix = Array("x", halves(72, 1), 72, 1, leading)
    if said is None:
        assert Boxes(matrix, rows, columns).columns == columns
    else:
        with pytest.raises(UserError) as error:
            Boxes(matrix, rows, columns)
        assert str(error.value) == said


# A warpgroup copies A (64×16, MN-major) and B (16×128, K-major) to where the 128-byte swizzle has them, and multiplies.
PRODUCT = """
half *a = reinterpret_cast<half *>(memory), *b = a + 16 * 64;
const int t = threadIdx.x;
for (int i = t; i < 64 * 16; i += 128) {
    const int row = i % 64, k = i / 64;
    a[k * 64 + (((row / 8) ^ (k % 8)) * 8) + row % 8] = x[i];
}
for (int i = t; i < 16 * 128; i += 128) {
    const int k = i % 16, column = i / 16;
    b[column * 64 + (((k / 8) ^ (column % 8)) * 8) + k % 8] = y[i];
}
fence_async();
__syncthreads();
float sums[64];
for (int i = 0; i < 64; i++) sums[i] = t * 64 + i;
const unsigned long long swizzle = 1ull << 62 | 64ull << 32;
wgmma_fence();
wgmma<128>(sums, swizzle | shared_address(a) / 16, swizzle | shared_address(b) / 16);
wgmma_commit();
wgmma_wait<0>();
for (int i = 0; i < 64; i++) z[t * 64 + i] = sums[i];
"""
PARAMETERS = "const half *x, const half *y, float *z"
NOT_WAITED_FOR = r"the block ends, and nobody has waited for a wgmma \(mine\.cu:\d+\)"


def multiplied(program: Program, threads: int = THREADS) -> tuple[str | None, np.ndarray, np.ndarray]:
    """What is refused; A·B; what each thread holds, less what it held before."""
    x, y, z = halves(64, 16), halves(16, COLUMNS), np.zeros(THREADS * 64, np.float32)
    arguments = (Array("x", x, 64, 16, 64), Array("y", y, 16, COLUMNS, 16), vector("z", z))
    said = launched(program, threads, *arguments)
    product = x.reshape(16, 64).T.astype(np.float32) @ y.reshape(COLUMNS, 16).T.astype(np.float32)
    return said, product, (z - np.arange(THREADS * 64, dtype=np.float32)).reshape(THREADS, 64)


def test_each_thread_holds_the_sums_that_ptx_says(kernel: Kernel) -> None:
    said, product, held = multiplied(kernel(PARAMETERS, PRODUCT))
    assert said is None
    for thread in range(THREADS):
        warp, lane = divmod(thread, 32)
        for i in range(64):  # the PTX ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16", accumulator D
            row = warp * 16 + lane // 4 + (8 if i % 4 in (2, 3) else 0)
            column = 8 * (i // 4) + (lane % 4) * 2 + (i & 1)
            assert held[thread, i] == product[row, column]


@pytest.mark.wide
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("wgmma_fence();", ""), "without wgmma_fence since its sums were last free to use"),
        (("fence_async();", ""), "without fence_async since"),
        (("__syncthreads();", ""), "a race|nobody has written"),
        (("wgmma_commit();", ""), NOT_WAITED_FOR),
        (("wgmma_wait<0>();", ""), NOT_WAITED_FOR),
        (("wgmma_wait<0>();", "wgmma_wait<1>();"), NOT_WAITED_FOR),
        (("wgmma_wait<0>();", "if (t < 96) wgmma_wait<0>();"), NOT_WAITED_FOR),
        (
            ("wgmma_fence();", "if (t % 2)\nwgmma_fence();\nelse\nwgmma_fence();"),
            "lanes of a warp are in different calls",
        ),
        (("wgmma_commit();", "if (t % 2) wgmma_commit();"), "lanes of a warp are in different calls"),
        (("wgmma_fence();", "fewer_registers<40>();\nmore_registers<232>();\nwgmma_fence();"), ""),
        (
            ("wgmma_fence();", "if (t < 64) fewer_registers<40>();\nwgmma_fence();"),
            "threads of a warpgroup are in different calls",
        ),
        (("wgmma_wait<0>();", "a[t] = x[0];"), "which a wgmma .* may still read"),
        (("wgmma_wait<0>();", "wgmma_wait<0>(); a[127 - t] = x[0];"), "may still read"),  # other warps' products
        (("wgmma_wait<0>();", "wgmma_wait<0>(); __syncthreads(); a[t] = x[0];"), ""),
        (("1ull << 62", "2ull << 62"), "the 128-byte swizzle alone"),
        (("reinterpret_cast<half *>(memory)", "reinterpret_cast<half *>(memory) + 64"), "where nobody has written"),
        (("float sums[64];", "if (t == 5) return;\nfloat sums[64];"), "waits for ever: .*wait in wgmma"),
    ],
)
def test_a_product_is_there_when_it_was_waited_for(kernel: Kernel, change: tuple[str, str], said: str) -> None:
    """`said`: what is refused; empty: nothing is wrong."""
    assert change[0] in PRODUCT
    found, product, held = multiplied(kernel(PARAMETERS, PRODUCT.replace(*change)))
    if said:
        assert found is not None and re.search(said, found), found
    else:
        assert found is None
        assert (np.sort(held.ravel()) == np.sort(product.ravel())).all()


# The same, where a barrier takes the place of __syncthreads.
ARRIVED = PRODUCT.replace(
    "const int t",
    "Barrier &there = *reinterpret_cast<Barrier *>(memory + 32768);\n"
    "if (threadIdx.x == 0) barrier_init(there, 128);\n__syncthreads();\nconst int t",
).replace("__syncthreads();\nfloat", "barrier_arrive(there);\nbarrier_wait(there, 0);\nfloat")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(("fence", "fence"), None, marks=pytest.mark.wide),
        (
            ("fence_async();\nbarrier_arrive(there);", "barrier_arrive(there);\nfence_async();"),
            "without fence_async since",
        ),
        pytest.param(
            ("barrier_wait(there, 0);", "if (t % 32 == 0) barrier_wait(there, 0);"), "a race", marks=pytest.mark.wide
        ),
    ],
)
def test_every_thread_has_to_have_seen_the_fence_before_the_arrival(
    kernel: Kernel, change: tuple[str, str], said: str | None
) -> None:
    assert change[0] in ARRIVED
    found, product, held = multiplied(kernel(PARAMETERS, ARRIVED.replace(*change)))
    if said is None:
        assert found is None
        assert (np.sort(held.ravel()) == np.sort(product.ravel())).all()
    else:
        assert found is not None and re.search(said, found), found


@pytest.mark.wide
def test_a_product_needs_a_warpgroup(kernel: Kernel) -> None:
    said, _, _ = multiplied(kernel(PARAMETERS, PRODUCT), threads=96)
    assert said is not None and "needs a warpgroup of 128 threads, and has 96" in said
