"""Our CUDA kernels, executed by the shim: right on every class of problems, and found out once a part is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mutants import Mutant, mutants

from pipeline.errors import UserError
from pipeline.kernels.cases import cases
from pipeline.kernels.check import check
from pipeline.kernels.cuda.function import COMMON, FOLDER
from pipeline.kernels.cuda.grid_stride import GridStride
from pipeline.kernels.cuda.naive import Naive
from pipeline.kernels.cuda.of_file import Source
from pipeline.kernels.cuda.source import CudaSource, by_columns, placed
from pipeline.kernels.cuda.tuned import Tuned
from pipeline.kernels.cuda.wgmma import Wgmma
from pipeline.kernels.gemm import Gemm, Operands, operands
from pipeline.kernels.named import every, kernels_of
from pipeline.kernels.shim.program import Array, Fault, Program, available, build
from pipeline.kernels.verify import Verdict, how_apart, may_hang, verify

pytestmark = pytest.mark.skipif(not available(), reason="no g++")

KERNELS = tuple(kernel for kernel in every() if isinstance(kernel, CudaSource))
BY_NAME = {kernel.name: kernel for kernel in KERNELS}
STEPS = 20_000_000  # basic blocks: a kernel that ends needs less for the problems below


def run(kernel: CudaSource, made: Operands, seed: int, program: Program | None = None, offset: int = 0) -> str | None:
    """What is wrong with a kernel's D, `offset` bytes behind where a card has it; None where nothing is.

    `made`: by columns.
    """
    program = program or kernel.program(made.gemm.dtype)
    arguments = list(kernel.arguments(made))
    assert isinstance(arguments[3], Array)
    arguments[3] = replace(arguments[3], buffer=placed(made.d, offset))
    try:
        program.launch(kernel.grid(made.gemm), kernel.block, arguments, seed=seed, steps=STEPS)
    except Fault as fault:
        return str(fault)
    return check(made, np.asarray(arguments[3].buffer)).fault


def test_naive_is_right_on_every_class_of_problems() -> None:
    found = verify(Naive(), list(cases("fp16", "column")), Naive().rehearse, 0)
    assert found.fault is None, found.fault
    assert found.n >= 18
    assert 0 < found.error <= 1


def test_wgmma_is_right_by_tma_and_by_threads_and_when_its_ring_has_turned() -> None:
    for m, n, k, pad in ((24, 40, 600, (0, 0, 0)), (37, 53, 71, (0, 0, 0)), (130, 67, 80, (6, 0, 3))):
        gemm = Gemm(m=m, n=n, k=k, dtype="fp16", alpha=-0.5, beta=1.0, pad=pad)
        assert run(Wgmma(), operands(gemm, 3), 3) is None


@pytest.mark.wide
@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "tf32", "int8"])
def test_every_kernel_is_right_on_every_class_of_problems_in_any_order_of_threads(name: str, dtype: str) -> None:
    kernel = BY_NAME[name]
    if dtype not in kernel.dtypes:
        pytest.skip(f"{name} takes {', '.join(kernel.dtypes)}")
    for seed in range(3):
        found = verify(kernel, list(cases(dtype)), partial(kernel.rehearse, seed=seed), seed)
        assert found.fault is None, found.fault
        assert found.n >= 36


@pytest.mark.wide
@pytest.mark.parametrize("name", ["tiled", "tuned", "wgmma", "wgmma_persistent"])
def test_several_blocks_and_slices(name: str) -> None:
    """Larger than two blocks each way, K longer than the stages of copies; columns that TMA reads, and others."""
    kernel = BY_NAME[name]
    for m, n, k in ((300, 530, 200), (257, 257, 97), (512, 512, 64)):
        for pad in ((4, 7, 0), (-m % 8, -k % 8, 1)):
            gemm = Gemm(m=m, n=n, k=k, dtype="fp16", alpha=-0.5, beta=1.0, pad=pad)
            assert run(kernel, operands(gemm, 3), 3) is None


@pytest.mark.wide
def test_tuned_is_right_in_the_slices_of_a_gpu_with_little_shared_memory() -> None:
    kernel = Tuned()
    defines, shared = kernel.defines("fp16", 86), kernel.shared("fp16", 86)
    assert defines == ("FP16", "SLICE_K=32") and shared <= 99 << 10
    program = build(kernel.source, kernel.entry, defines, shared, kernel.beside)
    for made in problems("fp16"):
        assert run(kernel, made, 0, program) is None


@pytest.mark.wide
def test_work_of_a_thread_changes_nothing_but_the_grid() -> None:
    gemm = Gemm(m=37, n=53, k=71, dtype="fp32")
    made = operands(gemm, 0)
    found = []
    for work in (1, 3, 64, 10_000):
        kernel = GridStride(work=work)
        launch = kernel.rehearse(made)
        assert launch is not None
        launch.run()
        found.append(launch.result())
        assert kernel.grid(gemm)[0] == -(-37 * 53 // (256 * work))
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


def problems(dtype: str) -> Iterator[Operands]:
    """Those by which a fault shows: the classes of `cases` in both orders, and what leads to the fast ways and past
    them."""
    for order in ("column", "row"):
        for _, gemm, values, nan_c in cases(dtype, order):
            yield at(by_columns(operands(gemm, 0, values, nan_c)))
    whole = Gemm(m=64, n=64, k=64, dtype=dtype)
    yield at(operands(whole, 0, nan_c=True))
    yield at(operands(whole, 0), offset=whole.type.size)  # A and B at odd addresses
    yield odd(dtype, of_c=4)
    yield at(operands(Gemm(m=37, n=53, k=71, dtype=dtype, beta=1.0, pad=(3, 1, 3)), 0))  # ragged, in whole chunks
    yield at(operands(Gemm(m=24, n=800, k=136, dtype=dtype), 0))  # several tiles, and K longer than they are wide
    for m, n, k in ((256, 256, 64), (128, 512, 256), (160, 256, 256), (128, 264, 256), (128, 256, 240)):
        yield at(operands(Gemm(m=m, n=n, k=k, dtype=dtype), 0))  # whole blocks and slices, and all but whole ones
    for pad in ((1, 0, 0), (0, 1, 0)):  # whole, but only one of A and B in chunks
        yield at(operands(Gemm(m=128, n=256, k=128, dtype=dtype, pad=pad), 0))


def at(made: Operands, offset: int = 0, of_c: int = 0) -> Operands:
    """With A, B and C where a card's memory has them, A and B `offset` bytes behind that, C `of_c`."""
    return replace(made, a=placed(made.a, offset), b=placed(made.b, offset), c=placed(made.c, of_c))


def odd(dtype: str, of_c: int = 0) -> Operands:
    """Whole tiles, of which C may lie elsewhere than D."""
    return at(operands(Gemm(m=64, n=64, k=64, dtype=dtype, beta=1.0), 0), of_c=of_c)


def caught(kernel: CudaSource, mutant: Mutant, folder: Path) -> str | None:
    """By which message a mutant is found out, in which dtype; None where it survives every problem in all of them.

    fp16 comes first, which finds nearly all: what it lets pass, the others have to let pass too.
    """
    for name in kernel.sources:
        shutil.copy(FOLDER / name, folder / name)
    (folder / mutant.file).write_text(mutant.text)
    for dtype in sorted(kernel.dtypes, key=lambda one: one != "fp16"):
        program = kernel.program(dtype, folder / kernel.source.name)
        faults = (run(kernel, made, n, program) for n, made in enumerate(problems(dtype)))
        fault = next(filter(None, faults), None) or run(kernel, odd(dtype), 0, program, offset=4)
        if fault:
            return f"{dtype}: {fault}"
    return None


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Mutants are compiled into a cache that goes with the test."""
    Naive().program("fp16")  # the shim itself, into the usual one
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    folder = tmp_path / "sources"
    folder.mkdir()
    return folder


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("naive", "naive.cu"),
        ("naive", COMMON),
        ("tiled", "tiled.cu"),
        ("tiled", "slices.cuh"),
        ("tuned", "tuned.cu"),
        ("tuned", "slices.cuh"),
        ("wgmma", "wgmma.cu"),
        ("wgmma", "ring.cuh"),
        ("wgmma_persistent", "wgmma_persistent.cu"),
        ("wgmma_persistent", "ring.cuh"),
        ("grid_stride", "grid_stride.cu"),
    ],
)
def test_a_kernel_without_one_of_its_barriers_waits_or_checks_is_found_out(
    name: str, file: str, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = mutants(FOLDER / file)
    found = {mutant: caught(BY_NAME[name], mutant, own_cache) for mutant in sites}
    survivors = {str(mutant) for mutant, fault in found.items() if fault is None}
    with capsys.disabled():
        print(f"\n{file} in {name}: {len(sites)} sites, {len(sites)} mutants, {len(survivors)} survive")
    assert sites
    assert survivors == {str(mutant) for mutant in spared(BY_NAME[name], sites)}


def spared(kernel: CudaSource, sites: Sequence[Mutant]) -> list[Mutant]:
    """The sites that a kernel calls spare. Each text has to name one alone: of two alike one may be essential."""
    chosen = [mutant for mutant in sites if mutant.file == kernel.source.name and mutant.what in kernel.spare]
    named = [mutant.what for mutant in chosen]
    twice = [str(mutant) for mutant in chosen if named.count(mutant.what) > 1]
    assert not twice, f"{kernel.name}.spare names several sites by one text: {twice}"
    return chosen


@pytest.mark.wide
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda one: one.name)
def test_a_kernel_is_right_where_c_or_d_alone_lies_at_an_odd_address(kernel: CudaSource) -> None:
    """Else each of its mutants would be found out by that."""
    dtype = "fp16" if "fp16" in kernel.dtypes else kernel.dtypes[0]
    assert run(kernel, odd(dtype, of_c=4), 0) is None
    assert run(kernel, odd(dtype), 0, offset=4) is None


def test_a_text_that_names_two_sites_excuses_neither() -> None:
    sites = mutants(FOLDER / "naive.cu")
    assert {mutant.what for mutant in spared(Naive(), sites)} == set(Naive.spare)
    again = replace(next(one for one in sites if one.what in Naive.spare), line=1)
    with pytest.raises(AssertionError, match=r"naive\.spare names several sites by one text"):
        spared(Naive(), [again, *sites])


def test_a_barrier_less_is_a_race_and_a_wait_less_is_a_copy_on_its_way(own_cache: Path) -> None:
    sites = mutants(FOLDER / "tuned.cu")
    kinds = {one.what.partition("(")[0]: one for one in sites if one.what.startswith("__")}
    assert set(kinds) == {"__pipeline_wait_prior", "__syncthreads", "__pipeline_commit"}
    barrier = caught(Tuned(), kinds["__syncthreads"], own_cache)
    assert barrier is not None
    assert "with no barrier between them: a race" in barrier
    wait = caught(Tuned(), kinds["__pipeline_wait_prior"], own_cache)
    assert wait is not None
    assert "is on its way" in wait
    assert "tuned.cu:" in wait


ENDLESS = (
    r"mine\.cu: thread .*(out of bounds|has not ended within|is in a loop that does nothing)"  # as g++ compiles it
)
MINE = """#include "gemm.cuh"
extern "C" __global__ void gemm(const Element *A, const Element *B, const Sum *C, Sum *D, int M, int N, int K, int lda,
                                int ldb, int ldc, Sum alpha, Sum beta)
{
    const int row = blockIdx.x * 16 + threadIdx.x, column = blockIdx.y * 16 + threadIdx.y;
    if (row >= M || column >= N) return;
    Sum sum = 0;
    for (int k = 0; k < K; k++) sum += Sum(A[row + k * lda]) * Sum(B[k + column * ldb]);
    D[row + column * ldc] = alpha * sum + (beta != 0 ? beta * C[row + column * ldc] : Sum(0));
}
"""


def mine(tmp_path: Path, text: str = MINE) -> Verdict:
    """A kernel of the user's, as the stage verifies it."""
    file = tmp_path / "mine.cu"
    file.write_text(text)
    kernel = Source(file=str(file), block=(16, 16, 1), tile=(16, 16))
    return verify(kernel, list(cases("fp16", "column")), kernel.rehearse, 0)


def test_a_kernel_from_outside_the_repository_is_verified(tmp_path: Path) -> None:
    found = mine(tmp_path)
    assert found.fault is None
    assert found.n >= 18


@pytest.mark.wide
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("row >= M || ", ""),
            r"thread \(\d+,\d+,0\) of block \(0,0,0\): reads 2 bytes out of bounds at 0x\w+.*\(mine\.cu:8\)",
        ),
        (("k < K", "true"), ENDLESS),
        (("Sum sum = 0;", "Sum sum = 0;\n    while (K) {}"), ENDLESS),
        (("alpha * sum", "sum"), r"elements are wrong"),
    ],
)
def test_a_wrong_kernel_from_outside_is_one_message(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    import re

    found = mine(tmp_path, MINE.replace(*change))
    assert found.fault is not None
    assert re.search(said, found.fault), found.fault
    assert "\n" not in found.fault


def test_a_file_of_cuda_is_a_kernel_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(MINE)
    found = kernels_of([str(tmp_path / "mine.cu")])
    assert isinstance(found, tuple)
    assert isinstance(found[0], Source)
    assert found[0].name == "mine"
    with pytest.raises(UserError, match=r"none\.cu: no such file"):
        kernels_of([str(tmp_path / "none.cu")])


def test_a_kernel_says_why_it_cannot_be_timed_here() -> None:
    from pipeline.machine.device import gpus

    if gpus():
        pytest.skip("there is a GPU")
    assert Tuned().missing() == "an NVIDIA GPU"
    assert Tuned().refusal(Gemm(m=1, n=1, k=1, dtype="fp32")) == "takes fp16, bf16, not fp32"


def ready(name: str) -> CudaSource:
    """A kernel that this machine can run; skips where it cannot."""
    kernel = BY_NAME[name]
    if kernel.missing():
        pytest.skip(f"needs {kernel.missing()}")
    return kernel


@pytest.mark.gpu
@pytest.mark.parametrize("name", BY_NAME)
def test_on_a_gpu_every_kernel_is_right_and_timed(name: str) -> None:
    kernel = ready(name)
    for dtype in kernel.dtypes:
        # More tiles than a card has multiprocessors, with a last slice that is not whole and with whole ones.
        many_tiles = [Gemm(m=4096, n=2304, k=k, dtype=dtype) for k in (136, 192)]
        problems = [*cases(dtype), *(("many tiles", one, "uniform", False) for one in many_tiles)]
        found = verify(kernel, problems, partial(kernel.prepare, threads=1), 0)
        assert found.fault is None, found.fault
    launch = kernel.prepare(operands(Gemm(m=1024, n=1024, k=1024, dtype=kernel.dtypes[0]), 0), 1)
    launch.run()
    assert 1e-6 < launch.seconds(10) < 1
    assert isinstance(launch.facts["registers"], int)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(130, 67, 96), (136, 72, 96)], ids=["by threads", "by TMA"])
@pytest.mark.parametrize("name", BY_NAME)
def test_on_a_gpu_a_kernel_gives_what_the_shim_gives(name: str, size: tuple[int, int, int]) -> None:
    kernel = ready(name)
    m, n, k = size
    made = operands(Gemm(m=m, n=n, k=k, dtype="fp16", beta=1.0), 0, "integers")
    rehearsal, launch = kernel.rehearse(made), kernel.prepare(made, 1)
    assert rehearsal is not None
    rehearsal.run()
    launch.run()
    np.testing.assert_array_equal(launch.result(), rehearsal.result())


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["column", "row"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("D[size_t(ldc) * N] = 0;", "writes beyond D: 1 number before or after its buffer"),
        ("const_cast<Element *>(A)[0] = Element(0.0f);", "writes into {}, or beside"),
        ("const_cast<Element *>(B)[-1] = Element(0.0f);", "writes into {}, or beside"),
    ],
)
def test_on_a_gpu_what_is_written_elsewhere_is_seen(tmp_path: Path, order: str, change: str, said: str) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(MINE.replace("    Sum sum = 0;", f"    if (row == 0 && column == 0) {change}\n    Sum sum = 0;"))
    kernel = Source(file=str(file), block=(16, 16, 1), tile=(16, 16))
    if kernel.missing():
        pytest.skip(f"needs {kernel.missing()}")
    problem = ("sizes", Gemm(m=48, n=48, k=48, dtype="fp16", order=order), "uniform", False)  # type: ignore[arg-type]
    found = verify(kernel, [problem], partial(kernel.prepare, threads=1), 0)  # type: ignore[list-item]
    mine, other = "AB" if order == "column" else "BA"
    assert said.format(mine if "(A)" in change else other) in str(found.fault)


@pytest.mark.gpu
def test_on_a_gpu_launches_are_replayed_as_a_graph() -> None:
    """As many as are asked for; each is shorter than one that Python makes."""
    kernel = ready("naive")
    launch = kernel.prepare(operands(Gemm(m=64, n=64, k=64, dtype="fp16"), 0), 1)
    launch.run()
    assert 1e-7 < launch.seconds(250) < launch.seconds(1)
    assert str(launch.facts["card"]).startswith("gpu:0 ")


def test_a_header_of_the_users_counts_as_the_source_does(tmp_path: Path) -> None:
    header, file = tmp_path / "scale.h", tmp_path / "mine.cu"
    file.write_text('#include "scale.h"\n' + MINE.replace("alpha * sum", "SCALE * alpha * sum"))
    kernel = Source(file=str(file), block=(16, 16, 1), tile=(16, 16))
    faults = []
    for scale in (1, 2):
        header.write_text(f"#define SCALE {scale}\n")
        assert kernel.user_files == (file.resolve(), header.resolve())
        faults.append(verify(kernel, list(cases("fp16", "column")), kernel.rehearse, 0).fault)
    assert faults[0] is None
    assert "elements are wrong" in str(faults[1])


def test_without_a_compiler_that_the_shim_takes_a_kernel_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "clang++"  # it refuses what it does not know, as clang does
    other.write_text('#!/bin/sh\nexec g++ -fno-such-option "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("CXX", str(other))
    assert not available()
    assert Naive().rehearse(operands(Gemm(m=1, n=1, k=1, dtype="fp16"), 0)) is None
    assert f"(to verify it without one: g++ 10 or newer, and CXX={other} is none)" in str(Naive().missing())


@pytest.mark.wide
def test_a_users_kernel_for_a_gpu_is_verified_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork of a process that has used CUDA cannot use it: here the shim takes the card's place."""
    import multiprocessing

    asked: list[str] = []
    context = multiprocessing.get_context

    def noted(how: str) -> object:
        asked.append(how)
        return context(how)

    monkeypatch.setattr(multiprocessing, "get_context", noted)
    monkeypatch.setattr(Source, "missing", lambda _: "an NVIDIA GPU")
    assert mine(tmp_path).fault is None
    monkeypatch.setattr(Source, "missing", lambda _: None)
    assert mine(tmp_path).fault is None
    assert asked == ["fork", "spawn"]


def test_on_a_card_a_kernel_that_may_hang_is_verified_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [kernel.name for kernel in KERNELS if may_hang(kernel)] == []
    monkeypatch.setattr(CudaSource, "missing", lambda _: None)
    assert [kernel.name for kernel in KERNELS if may_hang(kernel)] == ["wgmma", "wgmma_persistent"]
    assert how_apart(Wgmma()) == "spawn"


def test_a_kernel_that_lacks_the_dtype_is_not_called_wrong() -> None:
    from pipeline.stages.wmma.bench import Bench
    from pipeline.stages.wmma.stage import Wmma

    stage = Wmma(kernels=(Naive(), GridStride(work=4)), sizes=((8, 8, 8),), threads=1, dtype="fp32")
    said: list[str] = []
    bench = Bench(stage.plan(0), SimpleNamespace(say=said.append))  # type: ignore[arg-type]
    bench.verify()
    assert not bench.verdicts  # nothing runs here
    bench.rehearse()
    assert said == ["verifying what is not timed here: grid_stride_4"]
    assert list(bench.verdicts) == ["grid_stride_4"]
    assert bench.absent["naive"] == "takes fp16, bf16, tf32, int8, not fp32"
