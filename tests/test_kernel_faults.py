"""What goes wrong in one kernel is that kernel's row: it is found, and the others are timed."""

from __future__ import annotations

import ctypes
import importlib
import itertools
import math
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, cast

import numpy as np
import pytest
from command import without_place
from pydantic import ValidationError

from pipeline.backends import Torch
from pipeline.command_line import composed
from pipeline.contracts.kernels import Kernel, Launch
from pipeline.errors import RunError, UserError, cut
from pipeline.experiment import Experiment
from pipeline.kernels import on_card as on_card_module
from pipeline.kernels import verify as verifying
from pipeline.kernels.apart import Apart
from pipeline.kernels.card_state import State
from pipeline.kernels.check import check
from pipeline.kernels.cpu import ceilings
from pipeline.kernels.cpu.ceilings import doubt
from pipeline.kernels.cpu.numpy import Matmul, Numpy, blas
from pipeline.kernels.cpu.of_file import Source as CppSource
from pipeline.kernels.cuda import driver
from pipeline.kernels.cuda.batches import batches
from pipeline.kernels.cuda.copies import Copy, copies
from pipeline.kernels.cuda.limits import Limits, refused_launch
from pipeline.kernels.cuda.naive import Naive
from pipeline.kernels.cuda.of_file import Source
from pipeline.kernels.cuda.tuned import Tuned
from pipeline.kernels.gemm import Gemm, Operands, digest, operands, with_margins
from pipeline.kernels.on_card import asked, card, card_index, on_card
from pipeline.kernels.shim.program import available
from pipeline.kernels.timing import Times, in_turns
from pipeline.kernels.torch.launch import one_message
from pipeline.kernels.triton.triton_tma import TritonTma
from pipeline.kernels.verify import Case, all_cases, verify
from pipeline.machine import device
from pipeline.machine.blas import SPINS_S
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Device, Gpu, Place
from pipeline.ready import ready
from pipeline.runs.json_files import plain
from pipeline.spec import Config, build_as, spec
from pipeline.stages.wmma import bench as bench_module
from pipeline.stages.wmma import machine_code, tables
from pipeline.stages.wmma.bench import Bench
from pipeline.stages.wmma.found import Plan
from pipeline.stages.wmma.padding import measured
from pipeline.stages.wmma.stage import Wmma

SMALL: Case = ("sizes", Gemm(m=16, n=16, k=16), "uniform", False)


class Said:
    """Of an open run what the bench uses: somebody to talk to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.say = self.note = self.lines.append


@spec
class Late(Kernel):
    """NumPy's product after `call_s` seconds of work that a call may take; a user's kernel, as it is not ours.

    `prepare_s`: seconds that it takes to prepare. `fails_after`: runs, in a process, after which it raises;
    `stops_after`: after which it returns at once. `idle_below`: fewer calls in a sample are not made.
    """

    processor: ClassVar[Literal["cpu", "gpu"]] = "cpu"
    dtypes: ClassVar[tuple[str, ...]] = ("fp32",)

    call_s: float = 0.0
    prepare_s: float = 0.0
    fails_after: int | None = None
    stops_after: int | None = None
    idle_below: int = 0

    def prepare(self, operands: Operands, threads: int) -> Launch:
        time.sleep(self.prepare_s)
        return LateLaunch(operands, threads, self)


@spec
class Large(Late):
    """It keeps a large file."""

    def prepare(self, operands: Operands, threads: int) -> Launch:
        with tempfile.TemporaryFile() as file:
            file.truncate(2**26 + 1)
        return super().prepare(operands, threads)


@spec
class Forgetful(Late):
    """Its `prepare` returns nothing."""

    def prepare(self, operands: Operands, threads: int) -> Launch:  # noqa: ARG002
        return None  # type: ignore[return-value]


@spec
class Refuses(Late):
    """Its `refusal` raises."""

    def refusal(self, gemm: Gemm) -> str | None:
        raise ValueError(gemm.dtype)


@spec
class Misses(Late):
    """Its `missing` raises."""

    def missing(self) -> str | None:
        raise ValueError("nobody knows")


@spec
class Strange(Late):
    """Its launch has a fact that JSON does not know."""

    def prepare(self, operands: Operands, threads: int) -> Launch:
        launch = LateLaunch(operands, threads, self)
        launch.facts = {"threads": threads, "blocks": {threads}}
        return launch


@spec
class OfATpu(Late):
    processor = "tpu"  # type: ignore[assignment]


@spec
class OfHalfABit(Late):
    dtypes = ("fp32", "fp8")


@spec
class OfNothing(Late):
    dtypes = ()


class LateLaunch(Matmul):
    def __init__(self, operands: Operands, threads: int, kernel: Late) -> None:
        super().__init__(operands, threads)
        self.kernel, self.runs = kernel, 0

    def run(self) -> None:
        if self.kernel.stops_after is not None and self.runs >= self.kernel.stops_after:
            return
        until = time.process_time() + self.kernel.call_s  # what others compute meanwhile is not the kernel's
        while time.process_time() < until:
            pass
        super().run()
        self.runs += 1
        if self.kernel.fails_after is not None and self.runs > self.kernel.fails_after:
            raise ValueError("enough")

    def seconds(self, calls: int) -> float:
        return super().seconds(calls) if calls >= self.kernel.idle_below else 1e-6


def bench_of(*kernels: Kernel, sizes: tuple[int, ...] = (32,), longest: float = 0.5, seconds: float = 0.02) -> Bench:
    """Verified and timed."""
    problems = tuple(Gemm(m=size, n=size, k=size) for size in sizes)
    plan = Plan(kernels=kernels, problems=problems, cores=1, rounds=3, seconds=seconds, longest=longest, seed=0)
    bench = Bench(plan, Said())  # type: ignore[arg-type]
    with bench.blas_threads():
        bench.verify()
        for gemm in problems:
            bench.times |= bench.time([gemm])
    return bench


class Unkind(Matmul):
    """NumPy's product, and what `how` says."""

    def __init__(self, operands: Operands, how: str) -> None:
        super().__init__(operands, 1)
        self.how = how

    def seconds(self, calls: int) -> float:
        if self.how == "crashes":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exits":
            os._exit(3)
        if self.how == "sleeps":
            time.sleep(60)
        if self.how == "raises":
            raise ValueError("enough")
        if self.how == "writes":
            with_margins(self.buffer)[0] = 0
        return super().seconds(calls)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("crashes", "crashed (SIGKILL)"),
        ("exits", "crashed (exit status 3)"),
        ("sleeps", "has not ended after 1 s"),
        ("raises", "raises ValueError: enough"),
    ],
)
def test_a_users_kernel_that_ends_its_process_does_not_end_the_run(how: str, said: str) -> None:
    launch = Apart(Late(), partial(Unkind, how=how), operands(SMALL[1], 0), limit=0.6 if how == "sleeps" else 100.0)
    if how != "sleeps":  # of which a busy machine may not have a call done within its limit
        launch.run()
    with pytest.raises(RunError) as error:
        launch.seconds(2)
    assert without_place(str(error.value)) == said
    if how != "raises":
        with pytest.raises(RunError, match=r"^crashed "):
            launch.run()


def test_a_kernel_in_another_process_is_timed_and_checked_there() -> None:
    made = operands(Gemm(m=37, n=53, k=71, pad=(3, 5, 7)), 0)
    launch = Apart(Late(), partial(Unkind, how="writes"), made, limit=100.0)
    launch.run()
    assert check(made, launch.result()).fault is None
    launch.refill(made.d)
    assert np.isnan(launch.result()).all()
    assert launch.seconds(3) > 0
    assert str(check(made, launch.result()).fault).startswith("writes beyond D: 1 number")
    assert launch.facts["threads"] == blas()["threads"]
    with pytest.raises(RunError, match=r"^no room$"):
        Apart(Late(), _refused, made, limit=100.0)


KILLED = """
import os, signal
from functools import partial
import test_kernel_faults as here
made = here.operands(here.SMALL[1], 0)
launches = [here.Apart(here.Late(), partial(here.Unkind, how="right"), made, limit=100.0) for _ in range(2)]
print(*(launch._process.pid for launch in launches), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.wide
def test_the_other_process_does_not_outlive_the_run() -> None:
    """They share a pipe, so that it ends with the last of them."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", KILLED]
    ours, theirs = os.pipe()
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, pass_fds=[theirs], text=True, timeout=600, check=False
    )
    os.close(theirs)
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.split()) == 2
    ended, _, _ = select.select([ours], [], [], 600)
    assert ended and os.read(ours, 1) == b""
    os.close(ours)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ('printf("hello\\n");', r"mine: printed \d+ lines while it was prepared and verified; the first: hello"),
        (
            'if (m == 21) { printf("now\\n"); fprintf(stderr, "lost\\n"); _exit(3); }',
            r"mine: printed 2 lines while it was prepared and verified; the first: now; the last: lost",
        ),
    ],
)
def test_what_a_users_kernel_prints_is_a_note(
    does: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A single printf was hundreds of lines between those of the report; what one prints that crashes is kept."""
    file, text = tmp_path / "mine.cpp", (Path(__file__).parent / "own_kernel.cpp").read_text()
    headers = "#include <cstdio>\n#include <unistd.h>\n"
    file.write_text(headers + text.replace("    for (long j", f"    {does}\n    for (long j", 1))
    bench = bench_of(CppSource(file=str(file)), sizes=(21,))
    assert ("crashed (exit status 3)" in str(bench.verdicts["mine"].fault)) == ("_exit" in does)
    assert capfd.readouterr() == ("", "")
    bench.run.artifact = tmp_path.joinpath  # type: ignore[assignment]
    bench.note_printed()
    assert re.fullmatch(said + r" \(artifacts/printed.txt\)", bench.run.lines[-1])  # type: ignore[attr-defined]
    name, first, *_ = (tmp_path / "printed.txt").read_text().splitlines()
    assert (name, first) == ("mine:", "now" if "_exit" in does else "hello")


def test_a_kernel_may_write_large_files() -> None:
    """The limit of what it prints was one of all of its files, shared memory too."""
    assert bench_of(Large()).verdicts["large"].fault is None


CLOSED = """
import os, sys
from pathlib import Path
from pipeline.kernels.printed import redirected
os.close(1)
sys.stdout = None
with redirected(Path(sys.argv[1])):
    os.write(1, b"said")
try:
    os.fstat(1)
except OSError:
    sys.exit(3)
"""


def test_what_is_printed_is_kept_where_standard_output_is_closed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLOSED, str(tmp_path / "printed")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (3, "")
    assert (tmp_path / "printed").read_text() == "said"


def test_what_a_kernel_prints_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line in the innermost loop was gigabytes."""
    monkeypatch.setattr("pipeline.kernels.printed.LARGEST", 1 << 16)
    file, text = tmp_path / "mine.cpp", (Path(__file__).parent / "own_kernel.cpp").read_text()
    line = '    for (int i = 0; i < 1000; i++) printf("hello\\n");\n    for (long j'
    file.write_text("#include <cstdio>\n" + text.replace("    for (long j", line, 1))
    bench = bench_of(CppSource(file=str(file)), sizes=(21,))
    assert bench.verdicts["mine"].fault is None
    (printed,) = bench.printed.written.values()
    assert printed.stat().st_size == 1 << 16
    (note,) = bench.printed.notes()
    assert note.startswith("mine: printed 10,923 lines and more while it was prepared and verified; the first: hello")


@spec
class Talks(Late):
    """It says that it is prepared, through Python, through C and from another process. `raises`: and fails then."""

    raises: bool = False

    def prepare(self, operands: Operands, threads: int) -> Launch:
        print("by Python")
        ctypes.CDLL(None).puts(b"by C")
        subprocess.run(["echo", "by another process"], check=True)
        if self.raises:
            raise ValueError("enough")
        return super().prepare(operands, threads)


SAYS = {"by Python", "by C", "by another process"}


@pytest.mark.parametrize("raises", [False, True])
def test_what_a_users_kernel_prints_while_it_is_prepared_is_kept_too(
    raises: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood before the run's first line. What one prints that cannot be prepared may say why: it is shown."""
    monkeypatch.setattr(sys, "stdout", open(1, "w", closefd=False))  # noqa: SIM115  # as it is in a command
    stage, here = Wmma(kernels=(Talks(raises=raises),)), SimpleNamespace(seed=0, device=Device(name="cpu"))
    with pytest.raises(UserError) if raises else nullcontext():
        stage.rehearse(here, SimpleNamespace(place=Place("cpu")))  # type: ignore[arg-type]
    print("afterwards", flush=True)
    seen = capfd.readouterr()
    assert seen.out.splitlines() == ["afterwards"]
    assert set(seen.err.splitlines()) == (SAYS if raises else set())
    (printed,) = stage.printed.written.values()
    assert set(printed.read_text().splitlines()) == SAYS


SPAWNED = """
import test_kernel_faults as here
print("imported")

class Spawned(here.Late):
    forks = False
"""


@pytest.mark.wide
def test_what_a_users_module_prints_is_kept_where_another_process_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It came between the lines of the run, once for each size that was verified or timed."""
    (tmp_path / "spawned.py").write_text(SPAWNED)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = importlib.import_module("spawned").Spawned()
    capfd.readouterr()
    bench = bench_of(kernel)
    assert bench.verdicts[kernel.name].fault is None and bench.times[bench.plan.problems[0]]
    assert capfd.readouterr() == ("", "")
    (note,) = bench.printed.notes()
    assert note == f"{kernel.name}: printed 2 lines while it was prepared and verified; the first: imported"


def test_a_kernel_that_prints_nothing_has_no_note() -> None:
    bench = bench_of(Late())
    bench.note_printed()
    assert bench.run.lines == []  # type: ignore[attr-defined]


def _refused(_: Operands) -> Launch:
    raise UserError("no room")


GEMM_CU = """#include "gemm.cuh"
extern "C" __global__ void gemm(const Element *A, const Element *B, const Sum *C, Sum *D, int M, int N, int K, int lda,
                                int ldb, int ldc, Sum alpha, Sum beta)
{
    const int row = blockIdx.x * 16 + threadIdx.x, column = blockIdx.y * 16 + threadIdx.y;
    if (column >= N) return;
    if (row >= M) return;
    Sum sum = 0;
    for (int k = 0; k < K; k++) sum += Sum(A[row + k * lda]) * Sum(B[k + column * ldb]);
    D[row + column * ldc] = alpha * sum + (beta != 0 ? beta * C[row + column * ldc] : Sum(0));
}
"""


class OnACardAlone(Source):
    """A card on which it seems right: NumPy takes its place."""

    def missing(self) -> str | None:
        return None

    def prepare(self, operands: Operands, threads: int) -> Launch:
        return Matmul(operands, threads)


@pytest.mark.skipif(not available(), reason="no g++")
@pytest.mark.parametrize(
    ("change", "fault", "note"),
    [
        (("row >= M", "row > M"), "rehearsed on the CPU: sizes, at M=N=K=1, fp32, column-major: mine.cu: thread (", ""),
        pytest.param(
            ("Sum sum", 'asm volatile("membar.gl;"); Sum sum'),
            None,
            "mine_block_16_16_1: not rehearsed on the CPU: mine.cu: the shim, by which a CPU runs a kernel",
            marks=pytest.mark.wide,
        ),
    ],
)
@pytest.mark.wide
def test_a_users_cuda_is_rehearsed_where_there_is_a_gpu_too(
    tmp_path: Path, change: tuple[str, str], fault: str | None, note: str
) -> None:
    """The shim sees what a card may not; what it cannot compile, the card alone judges."""
    file = tmp_path / "mine.cu"
    file.write_text(GEMM_CU.replace(*change))
    bench = bench_of(OnACardAlone(file=str(file), block=(16, 16, 1)))
    assert str(bench.verdicts["mine_block_16_16_1"].fault).startswith(str(fault))
    assert any(line.startswith(note) for line in bench.run.lines) or not note  # type: ignore[attr-defined]
    assert list(bench.times[bench.plan.problems[0]]) == ([] if fault else ["mine_block_16_16_1"])


class OnCard(Matmul):
    """NumPy's product of copies, as a GPU has them; `writes` names the operands that it changes there."""

    def __init__(self, operands: Operands, writes: str) -> None:
        self.copies = {name: with_margins(one).copy() for name, one in zip("ABC", operands.abc, strict=True)}
        placed = copies(operands)
        a, b, c = (placed[name].inner(self.copies[name]) for name in "ABC")
        super().__init__(Operands(operands.gemm, a, b, c, operands.d), 1)
        self.writes = writes

    def run(self) -> None:
        super().run()
        for name in self.writes:
            self.copies[name][0] = 0  # in the margin

    def inputs(self) -> tuple[np.ndarray, ...]:
        return tuple(self.copies.values())


@pytest.mark.parametrize("writes", ["", "A", "BC"])
def test_what_a_kernel_writes_into_copies_of_its_operands_is_seen(writes: str) -> None:
    found = verify(Numpy(), [SMALL], partial(OnCard, writes=writes), seed=0).fault
    assert found == (
        f"sizes, at M=N=K=16, fp32, column-major: writes into {', '.join(writes)}, or beside" if writes else None
    )


@pytest.mark.parametrize("order", ["column", "row"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int8"])
def test_a_copy_has_the_margins_and_lies_as_the_matrix_does(dtype: str, order: Literal["column", "row"]) -> None:
    made = operands(Gemm(m=37, n=53, k=71, dtype=dtype, order=order, pad=(3, 5, 7)), 0)
    for one in (*made.abc, made.room()):
        copy = Copy.of(one)
        copy.memory = 1 << 20
        assert copy.whole.size > one.size
        assert copy.address % 256 == 0
        np.testing.assert_array_equal(copy.inner(copy.whole.copy()), one)
    copy = Copy.of(made.room())
    whole = copy.whole.copy()
    whole[copy.begin + copy.length] = 0
    assert str(check(made, copy.inner(whole)).fault).startswith("writes beyond D: 1 number")
    assert made.digest() == digest(map(with_margins, made.abc))


class Copied(Matmul):
    """Its result is a copy, and it does not say how that is filled."""

    def result(self) -> np.ndarray:
        return super().result().copy()


def test_a_launch_whose_result_is_a_copy_has_to_say_how_it_is_refilled() -> None:
    found = verify(Numpy(), [SMALL], lambda made: Copied(made, 1), seed=0)
    assert found.fault == "sizes, at M=N=K=16, fp32, column-major: override `refill`: D is not what it filled in"


class Gives(Matmul):
    """Whatever a user's `result` may give, by the buffer that it should."""

    def __init__(self, made: Operands, give: Callable[[np.ndarray], Any]) -> None:
        super().__init__(made, 1)
        self.give = give

    def result(self) -> np.ndarray:
        given: np.ndarray = self.give(super().result())
        return given


@pytest.mark.parametrize(
    ("give", "given"),
    [
        (lambda _: None, "None"),
        (lambda d: d[:3], "an array of shape (3,) of float32"),
        (lambda d: d.reshape(16, 16), "an array of shape (16, 16) of float32"),
        (lambda d: d.astype(np.float64), "an array of shape (256,) of float64"),
        (lambda d: d.tolist(), "a list"),
    ],
    ids=["nothing", "too few", "two dimensions", "another dtype", "no array"],
)
def test_a_result_that_is_not_the_buffer_of_d_is_said(give: Callable[[np.ndarray], Any], given: str) -> None:
    """It was `AttributeError: 'NoneType' object has no attribute 'reshape'`, of a line of ours."""
    found = verify(Numpy(), [SMALL], lambda made: Gives(made, give), seed=0)
    assert found.fault == (
        f"sizes, at M=N=K=16, fp32, column-major: result() gave {given}, where an array of shape (256,) of float32 is "
        "wanted: the buffer of D (16 × 16) as `operands.d` stores it, padding included"
    )


def test_a_kernel_that_cannot_be_prepared_is_a_verdict() -> None:
    def prepare(made: Operands) -> Launch:
        if made.gemm.k > 1:
            raise UserError("mine.cu: does not compile")
        return Matmul(made, 1)

    found = verify(Numpy(), all_cases("fp32"), prepare, seed=0)
    assert (found.n, found.fault) == (1, "sizes, at M=1, N=7, K=3, fp32, column-major: mine.cu: does not compile")


def test_the_kernel_of_the_page_is_right_as_the_page_launches_it(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "kernels.md").read_text()
    block = page[page.index('    #include "gemm.cuh"\n    extern "C" __global__ void gemm(const Element') :]
    lines = itertools.takewhile(lambda line: line.startswith("    "), block.splitlines())
    (tmp_path / "fast.cu").write_text("\n".join(line[4:] for line in lines))
    kernel = Source(file=str(tmp_path / "fast.cu"))
    assert verify(kernel, all_cases("fp16")[:12], kernel.rehearse, seed=0).fault is None


@pytest.mark.parametrize(
    ("kernel", "limit", "fault"),
    [
        (Late(prepare_s=4.0), 3.0, None),
        (Late(call_s=5.0), 0.3, "sizes, at M=N=K=16, fp32, column-major: has not ended after 0 s"),
        (Late(fails_after=1), 30.0, "sizes, at M=N=K=16, fp32, column-major: raises ValueError: enough"),
    ],
)
def test_the_limit_is_that_of_a_run(
    kernel: Late, limit: float, fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling, making operands and checking D take as long as they take."""
    monkeypatch.setattr(verifying, "LIMIT_S", limit)
    found = verify(kernel, [SMALL], partial(kernel.prepare, threads=1), seed=0).fault
    assert (found and without_place(found)) == fault


def test_a_call_that_never_ends_is_ended_also_where_it_is_timed_for_an_idea(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last problem's further calls had no limit: the stage hung."""
    monkeypatch.setattr(verifying, "LIMIT_S", 0.3)
    found = verify(Late(), [SMALL], partial(Unkind, how="sleeps"), seed=0)
    assert found.fault == "sizes, at M=N=K=16, fp32, column-major: has not ended after 0 s"


def test_a_kernel_of_the_users_rests_as_long_as_it_says() -> None:
    """Whoever is timed next shared the cores with its threads, which wait by spinning."""
    assert Apart(Numpy(), partial(Matmul, threads=2), operands(SMALL[1], 0), limit=5.0).rest_s == SPINS_S


def test_a_problem_that_is_left_out_is_no_right_one() -> None:
    """`prepare` without a result: three problems of 54 were verified, and the kernel was timed."""
    cases = all_cases("fp32")[:4]
    found = verify(Numpy(), cases, lambda made: Matmul(made, 1) if made.gemm.m < 9 else None, seed=0)
    assert found.n == 2 and str(found.fault).endswith(
        "nothing to run; a kernel's `refusal` says which problems it does not take"
    )
    bench = bench_of(Numpy(), Forgetful())
    assert str(bench.verdicts["forgetful"].fault).endswith("its `prepare` returned None, not a Launch")


def test_what_the_compiler_warns_of_a_users_file_is_noted_each_time(tmp_path: Path) -> None:
    """Also where it was compiled before."""
    file = tmp_path / "mine.cpp"
    text = (Path(__file__).parent / "own_kernel.cpp").read_text()
    file.write_text(text.replace("float sum = 0;", "float sum = 0; int one; int two;"))
    for _ in range(2):
        bench = bench_of(CppSource(file=str(file)))
        (note,) = (line for line in bench.run.lines if "warning" in line)  # type: ignore[attr-defined]
        assert note.startswith("mine: ") and note.endswith("[-Wunused-variable] (and 1 more; receipt.json has all)")
        assert len(cast(list[str], bench.facts["mine"]["warnings"])) == 2


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (OfATpu(), "stage.kernels=ofatpu: processor=tpu: no such choice (did you mean gpu?); choose from cpu, gpu"),
        (OfHalfABit(), "stage.kernels=ofhalfabit: dtypes=fp8: no such choice"),
        (OfNothing(), "stage.kernels=ofnothing: dtypes=(): give a tuple of one at least of fp32, tf32, fp16, bf16, "),
    ],
)
def test_a_processor_or_a_dtype_that_there_is_not_is_refused(kernel: Kernel, said: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(said)}"):
        build_as(Wmma, {"kernels": ("numpy", kernel)}, "stage")


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (Refuses(), "stage.kernels=refuses: refusal raises ValueError: fp32"),
        (Misses(), "stage.kernels=misses: missing raises ValueError: nobody knows"),
    ],
)
@pytest.mark.parametrize("dtype", [None, "fp32"])
def test_what_a_users_kernel_raises_when_it_is_asked_is_one_message(
    kernel: Kernel, said: str, dtype: str | None
) -> None:
    stage = Wmma(kernels=(Numpy(), kernel), dtype=dtype)
    with pytest.raises(UserError) as error:
        stage.check(SimpleNamespace(device=Device(name="cpu")))  # type: ignore[arg-type]
    assert without_place(str(error.value)) == said


@spec
class Called(Late):
    """By another name."""

    called: Any = None

    @property
    def name(self) -> str:
        found: str = self.called
        return found


@pytest.mark.parametrize("name", [None, "", "a/b", "..", "two\nlines", "x" * 81])
def test_a_name_that_no_row_or_metric_can_have_is_refused_before_the_run(name: Any) -> None:
    """When all had been timed the run ended with a traceback, and no result."""
    with pytest.raises(UserError) as error:
        build_as(Wmma, {"kernels": ("numpy", Called(called=name))}, "stage")
    assert str(error.value).startswith(
        f"stage.kernels: a kernel is called {cut(repr(name))}; choose 1 to 80 printable characters, "
    )


@spec
class Answers(Late):
    """`refusal` gives what the contract does not know."""

    answer: Any = False

    def refusal(self, gemm: Gemm) -> str | None:  # noqa: ARG002
        found: str | None = self.answer
        return found


@pytest.mark.parametrize("answer", [False, True, "", ["odd"]])
def test_a_refusal_that_is_neither_none_nor_a_text_is_named(answer: object) -> None:
    """With False the kernel was left out, because it `needs None`, and the run ended well."""
    with pytest.raises(UserError) as error:
        bench_of(Answers(answer=answer))
    assert str(error.value).endswith(f"refusal gave {answer!r}; return None, or in words why not")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"facts": None}, "facts gave None; give a mapping, {} where there is nothing to keep"),
        ({"rest_s": -1.0}, "rest_s gave -1.0; give seconds, 0 or more"),
        ({"rest_s": "long"}, "rest_s gave 'long'; give seconds, 0 or more"),
        ({"rest_s": math.inf}, "rest_s gave inf; give seconds, 0 or more"),
        ({"seconds": lambda _: 0.0}, "seconds gave 0.0; give the seconds that a run takes, above 0"),
        ({"seconds": lambda _: -1.0}, "seconds gave -1.0; give the seconds that a run takes, above 0"),
        ({"seconds": lambda _: math.inf}, "seconds gave inf; give the seconds that a run takes, above 0"),
        ({"seconds": lambda _: math.nan}, "seconds gave nan; give the seconds that a run takes, above 0"),
        ({"seconds": lambda _: None}, "seconds gave None; give the seconds that a run takes, above 0"),
    ],
)
def test_what_a_launch_says_of_itself_is_checked(changes: Mapping[str, Any], said: str) -> None:
    """Seconds of 0 and a rest below 0 ended the run with a traceback; negative seconds were believed."""

    def prepare(made: Operands) -> Launch:
        launch = LateLaunch(made, 1, Late())
        for name, value in changes.items():
            setattr(launch, name, value)
        return launch

    assert verify(Late(), [SMALL], prepare, seed=0).fault == f"sizes, at M=N=K=16, fp32, column-major: {said}"
    if "seconds" in changes:
        with pytest.raises(RunError, match=f"^{re.escape(said)}$"):
            Apart(Late(), prepare, operands(SMALL[1], 0), limit=9.0).seconds(1)


@spec
class Unlaunched(Late):
    def prepare(self, operands: Operands, threads: int) -> Launch:  # noqa: ARG002
        return 3  # type: ignore[return-value]


def test_whatever_prepare_returns_but_a_launch_is_said() -> None:
    fault = bench_of(Unlaunched()).verdicts["unlaunched"].fault
    assert str(fault).endswith("its `prepare` returned a int, not a Launch")


@spec
class Built(Late):
    """`machine_code` raises, or gives what is none."""

    raises: bool = False
    refuses: bool = False

    def machine_code(self, dtype: str, architecture: int) -> Any:
        if self.raises:
            raise ValueError("enough")
        if self.refuses:
            raise RunError(f"{self.name}, {dtype}, sm_{architecture}: {'its machine code has no HMMA ' * 9}".strip())
        return 3


@pytest.mark.parametrize("raises", [False, True])
def test_machine_code_that_a_users_kernel_cannot_give_is_a_row(raises: bool) -> None:
    """All that had been timed was lost with it."""
    kernel = Built(raises=raises)
    ((built, wrong),) = machine_code.refused(machine_code.built([kernel], lambda _: "fp32", [90], 1)).items()
    said = "raises ValueError: enough" if raises else "machine_code gave a int, not a MachineCode"
    assert (built, without_place(wrong)) == (f"{kernel.name}, fp32, sm_90", said)


def test_machine_code_that_is_refused_is_named_once_and_has_room() -> None:
    """The message had the kernel twice, and the table a column of words one below the other."""
    kernel = Built(refuses=True)
    found = machine_code.built([kernel], lambda _: "fp32", [90], 1)
    ((built, wrong),), (table,) = machine_code.refused(found).items(), machine_code.table(found)
    assert built == f"{kernel.name}, fp32, sm_90"
    assert wrong.startswith("its machine code") and kernel.name not in wrong
    assert table.rows == ((kernel.name, "fp32, sm_90", "", "", "", "REFUSED"),)
    ((name, said),) = machine_code.summary(found)
    assert (name, said[:39]) == (f"{kernel.name} sm_90", "REFUSED: its machine code has no HMMA i")


def test_a_fact_that_the_receipt_cannot_keep_is_wrong_and_the_others_are_timed() -> None:
    bench = bench_of(Numpy(), Strange())
    assert "facts['blocks']: the receipt cannot keep a value of type set; " in str(bench.verdicts["strange"].fault)
    assert list(bench.times[bench.plan.problems[0]]) == ["numpy"]
    assert plain(bench.facts)["strange"] == {}


def test_a_kernel_that_fails_while_it_is_timed_is_a_row() -> None:
    bench = bench_of(Numpy(), Late(fails_after=5), sizes=(32, 48), seconds=0.2)
    assert [list(found) for found in bench.times.values()] == [["numpy"], ["numpy"]]
    fault = bench.verdicts["late_fails_after_5"].fault
    assert fault is not None
    assert without_place(fault) == "at M=N=K=32, fp32, column-major, while it was timed: raises ValueError: enough"
    assert bench.yardstick == "numpy"


def test_a_kernel_that_computes_nothing_any_more_while_it_is_timed_is_wrong() -> None:
    """D was right, as a run before had left it: a kernel that had stopped had the rate of an empty call."""
    bench = bench_of(Numpy(), Late(stops_after=6), sizes=(32, 48), seconds=0.2)
    assert [list(found) for found in bench.times.values()] == [["numpy"], ["numpy"]]
    fault = str(bench.verdicts["late_stops_after_6"].fault)
    said = "at M=N=K=32, fp32, column-major, after it was timed: 1024 of 1024 elements are wrong: D[0,0] = nan, not "
    assert fault.startswith(said)


def test_a_kernel_that_computes_only_in_long_samples_is_wrong() -> None:
    """Its bursts had the rate of an empty call: D was looked at after a sustained sample alone."""
    bench = bench_of(Numpy(), Late(idle_below=2), sizes=(32, 48), seconds=0.2)
    assert [list(found) for found in bench.times.values()] == [["numpy"], ["numpy"]]
    fault = str(bench.verdicts["late_idle_below_2"].fault)
    said = "at M=N=K=32, fp32, column-major, after it was timed: in a burst: 1024 of 1024 elements are wrong: D[0,0] = "
    assert fault.startswith(said)


def test_a_turn_that_fails_is_the_last_of_its_kernel() -> None:
    made = operands(SMALL[1], 0)
    launches: Mapping[str, Launch] = {"late": LateLaunch(made, 1, Late(fails_after=2)), "numpy": Matmul(made, 1)}
    said: dict[str, Exception] = {}
    found = in_turns(launches, dict.fromkeys(launches, 1.0), 4, 8.0, said.__setitem__)
    assert (str(said["late"]), list(said)) == ("enough", ["late"])
    assert (len(found["late"].burst), len(found["numpy"].burst)) == (2, 4)
    with pytest.raises(ValueError, match="enough"):
        in_turns(launches, dict.fromkeys(launches, 1.0), 4, 8.0)


def test_a_time_that_is_mostly_the_call_itself_says_nothing_of_larger_sizes() -> None:
    """0.7 ms at 128 would be 45 ms at 512, where the product takes a tenth of that."""
    bench = bench_of(Late(call_s=7e-4), sizes=(512,), longest=0.04)
    assert not bench.skipped
    assert list(bench.times[bench.plan.problems[0]]) == ["late_call_s_0.0007"]
    slow = bench_of(Late(call_s=2e-3), sizes=(512,), longest=0.04)
    (why,) = slow.skipped.values()
    about, by = r"one product would take about 0\.\d+ s", r"by the [\d.]+ s of 128 fp32, column-major"
    assert re.fullmatch(rf"{about}, more than stage\.longest=0\.04, {by}", why)


class Even(Late):
    """It does not take what is odd."""

    def refusal(self, gemm: Gemm) -> str | None:
        return "takes even sizes" if gemm.m % 2 else None


def test_sizes_at_which_a_kernel_is_not_run_are_one_row() -> None:
    """With stage.around there were 17 beside those of stage.sizes; a refusal is another reason than the time."""
    bench = Bench(Wmma(kernels=(Late(), Even())).plan(0), Said())  # type: ignore[arg-type]
    late, even = (kernel.name for kernel in bench.plan.kernels)
    at = {size: Gemm(m=size, n=size, k=size) for size in (512, 100, 101, 103)}
    long = {size: f"one product would take about {size} s" for size in at}
    bench.skipped = {(gemm, late): long[size] for size, gemm in at.items()}
    bench.skipped |= {(at[size], even): "takes even sizes" for size in (101, 103)} | {(at[512], even): long[512]}
    assert tables.not_timed(bench) == [
        (late, "not run at 100 fp32, column-major, nor at 3 larger sizes: one product would take about 100 s"),
        (even, "not run at 101 fp32, column-major, nor at 1 larger size: takes even sizes"),
        (even, "not run at 512 fp32, column-major: one product would take about 512 s"),
    ]


def test_around_without_a_kernel_says_so() -> None:
    bench = bench_of(Late(fails_after=0))
    assert measured(bench, 64) is None
    assert bench.run.lines[-1] == "stage.around=64: no kernel was timed before, so none is timed around it"  # type: ignore[attr-defined]


def test_a_grid_that_cuda_lacks_is_refused() -> None:
    """By the kernel's name where the stage says it: naive has a row of blocks for each 64 columns."""
    wide = Gemm(m=1, n=64 * 65_535 + 1, k=1, dtype="fp16")
    assert Naive().refusal(wide) == "needs a grid of 65,536 blocks along y, and CUDA has no more than 65,535"
    assert Naive().refusal(replace(wide, m=wide.n, n=1, order="row")) is not None
    assert Naive().refusal(replace(wide, n=64 * 65_535)) is None
    assert Tuned().refusal(wide) is None
    assert Naive().refusal(Gemm(m=2**31, n=1, k=1, dtype="fp16")) == (
        "takes sizes and leading dimensions up to 2,147,483,647"
    )


@pytest.mark.parametrize(
    ("block", "static", "dynamic", "said"),
    [
        ((256, 1, 1), 0, 0, None),
        ((256, 1, 1), 1000, 231_448, None),
        ((1, 1, 65), 0, 0, "block=[1, 1, 65]: 65 threads along z; at most 64"),
        (
            (512, 2, 1),
            0,
            0,
            "block=[512, 2, 1]: 1,024 threads; with its registers and launch bounds a card runs 768 at most",
        ),
        (
            (256, 1, 1),
            1000,
            231_449,
            "dynamic=231449 and 1,000 bytes of static shared memory: a card has 232,448 bytes for a block",
        ),
        ((256, 1, 1), 0, 300_000, "dynamic=300000: a card has 232,448 bytes for a block"),
    ],
)
def test_a_block_that_a_card_does_not_run_is_refused_by_its_setting(
    block: tuple[int, int, int], static: int, dynamic: int, said: str | None
) -> None:
    assert refused_launch(block, static, dynamic, Limits("a card", 768, 232_448)) == said


@pytest.mark.parametrize("calls", [2, 99, 100, 101, 1000, 8009])
def test_graphs_make_as_many_launches_as_are_asked_for(calls: int) -> None:
    found = batches(calls)
    assert sum(found) == calls
    assert max(found) <= 100
    assert len(set(found)) <= 2


GPUS = (Gpu(0, "first", 1 << 34, (9, 0)), Gpu(1, "second", 1 << 34, (7, 0)))


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda:1", 1), ("gpu", 0), ("cpu", None)])
def test_the_card_is_the_one_that_device_names(name: str, index: int | None) -> None:
    assert asked(name) == index


def on_two_cards(word: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Experiment, Resolved, list[int]]:
    """What is made of a command beside GPUS and a torch without CUDA, and whose memory is looked at."""
    for module in (device, on_card_module):
        monkeypatch.setattr(module, "gpus", lambda: GPUS)
    monkeypatch.setattr(Torch, "no_gpu_because", lambda *_: "the installed torch is a CPU build")
    monkeypatch.setattr(driver, "missing", lambda _: on_card_module.missing_card(None))
    judged: list[int] = []
    found: list[tuple[Experiment, Resolved]] = []

    def free(index: int) -> int:
        judged.append(index)
        return 1 << 34

    def act(config: Config, overridden: Sequence[str]) -> int:
        found.append(ready(config, overridden))
        return 0

    monkeypatch.setattr("pipeline.stages.wmma.memory.gpu_free_bytes", free)
    composed(["stage=wmma", "stage.kernels=[numpy,cpu_naive,naive]", "tracking=none", word], act)
    return (*found[0], judged)


@pytest.mark.parametrize(
    ("word", "place"),
    [("device=auto", Place("gpu", 0)), ("device=gpu:1", Place("gpu", 1)), ("device=cpu", Place("cpu"))],
)
def test_our_kernels_run_where_it_is_announced_whatever_torch_can_use(
    word: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a torch without CUDA the run was announced on the CPU, and its kernels were timed on a GPU."""
    _, resolved, judged = on_two_cards(word, monkeypatch)
    assert resolved.place == place
    assert judged == [place.index] * (place.kind == "gpu")


@pytest.mark.parametrize(("word", "name"), [("device=gpu:1", "wmma-fp16"), ("device=cpu", "wmma-fp32")])
def test_a_run_is_called_by_what_is_timed_on_its_device(word: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a GPU a run on the CPU was called wmma-fp16."""
    experiment, _, _ = on_two_cards(word, monkeypatch)
    assert experiment.name == name
    with pytest.raises(UserError, match=rf"stage\.dtype \({name[5:]}\) says it"):
        experiment.stage.check_keys(experiment, ["precision"])


def test_a_kernel_says_what_it_needs_of_the_card_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_card_module, "gpus", lambda: GPUS)
    with on_card(1):
        assert driver.missing(Naive()) == "compute capability 7.5 or newer; second has 7.0"
        assert card() == GPUS[1]
    with on_card(None):
        assert driver.missing(Naive()) == "a GPU, and device=cpu leaves it alone"
    assert card() == GPUS[0]


class OnACard(Numpy):
    """A kernel that says where it ran."""

    def prepare(self, operands: Operands, threads: int) -> Launch:
        launch = super().prepare(operands, threads)
        launch.facts = {**launch.facts, "card": f"gpu:{card_index()} here"}
        return launch


def test_the_table_says_on_which_card_kernels_ran() -> None:
    with on_card(3):
        (table,) = tables.timed(bench_of(OnACard()))
    assert table.title.endswith("; GFLOP/s, on gpu:3 here")
    (plain,) = tables.timed(bench_of(Numpy()))
    assert plain.title.endswith("; GFLOP/s")


def test_the_cards_memory_is_judged_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_card_module, "gpus", lambda: GPUS)
    monkeypatch.setattr(driver, "missing", lambda _: None)
    monkeypatch.setattr("pipeline.stages.wmma.memory.gpu_free_bytes", lambda _: 1 << 26)
    here: Any = SimpleNamespace(device=Device())
    stage = Wmma(kernels=(Naive(), Tuned()), dtype="fp16", sizes=((2048, 2048, 2048),))
    with pytest.raises(UserError) as error:
        stage.check(here)
    said = "stage.sizes=[[2048,2048,2048]]: needs 97.5 MiB of memory on gpu:0 (first), where"
    assert str(error.value).startswith(said)
    Wmma(kernels=(Naive(),), dtype="fp16", sizes=((2048, 2048, 2048),)).check(here)


def test_sizes_follow_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Wmma(kernels=(Numpy(), Naive()), dtype="fp16")
    with on_card(None):
        assert [gemm.m for gemm in stage.problems] == [256, 512, 1024]
    monkeypatch.setattr(driver, "missing", lambda _: None)
    assert [gemm.m for gemm in stage.problems] == [1024, 2048, 4096, 8192]
    assert [gemm.m for gemm in Wmma(kernels=(Numpy(),)).problems] == [256, 512, 1024]


def test_bytes_in_int8_are_all_that_there_are() -> None:
    """And their sums are exact."""
    made = operands(Gemm(m=64, n=64, k=600, dtype="int8"), 0)
    assert set(np.unique(made.a)) == set(range(-128, 128))
    exact = made.a.reshape(600, 64).T.astype(np.int64) @ made.b.reshape(64, 600).T.astype(np.int64)
    d = made.d.copy()
    d[...] = exact.T.ravel()
    assert check(made, d).fault is None
    d[5] += 1
    assert str(check(made, d).fault).startswith("1 of 4096 elements are wrong")


def test_a_kernel_that_takes_some_of_the_sizes_is_absent_for_what_it_needs() -> None:
    """By the smallest size, which it refuses, its row said why it does not take that, as if it took none."""
    with on_card(None):
        some = Wmma(kernels=(Numpy(), TritonTma()), dtype="fp16", sizes=((100, 100, 100), (1024, 1024, 1024)))
        none = replace(some, sizes=((100, 100, 100),))
        absent = [Bench(one.plan(0), None).absent["triton_tma"] for one in (some, none)]  # type: ignore[arg-type]
    assert absent[0].startswith("needs ")
    assert absent[1].startswith("takes leading dimensions")


def test_a_run_within_a_tick_of_the_processors_clock_has_taken_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that clock is coarse it was no time at all, and a division by zero."""
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    made = operands(SMALL[1], 0)
    launch = Matmul(made, 1)
    _, seconds = verifying._run(made, launch, 0, lambda _: None)
    assert seconds > 0
    assert len(in_turns({"numpy": launch}, {"numpy": seconds}, 3, 0.01)["numpy"].burst) == 3


def test_a_longer_budget_makes_longer_samples() -> None:
    launch: Mapping[str, Launch] = {"numpy": Matmul(operands(SMALL[1], 0), 1)}
    calls = [in_turns(launch, {"numpy": 1e-4}, 3, seconds)["numpy"].calls for seconds in (0.0601, 0.301)]
    assert calls == [100, 501]


def test_arrays_that_caches_may_hold_are_named() -> None:
    assert doubt(1 << 29, 1 << 26) is None
    assert doubt(1 << 29, 1 << 28) == "an array has 512.0 MiB, less than 4 times the 256.0 MiB of the caches"
    assert doubt(1 << 26, 0) == "the size of the caches is not known, and an array has 64.0 MiB"


@pytest.mark.parametrize(("sizes", "found"), [({"1": "32K", "3": "512K"}, 512 << 10), ({"1": "32K"}, 0), ({}, 0)])
def test_caches_whose_size_a_virtual_machine_hides_are_not_known(
    sizes: dict[str, str], found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux on arm64 has no file `size` where firmware does not say it."""
    for core, level in itertools.product((0, 1), ("1", "3")):
        cache = tmp_path / f"cpu{core}/cache/index{level}"
        cache.mkdir(parents=True)
        (cache / "level").write_text(f"{level}\n")
        (cache / "shared_cpu_list").write_text(f"{core if level == '1' else '0-1'}\n")
        if level in sizes:
            (cache / "size").write_text(f"{sizes[level]}\n")
    monkeypatch.setattr(ceilings, "CORES", tmp_path)
    monkeypatch.setattr(ceilings, "allowed_cores", lambda: [0, 1])
    assert ceilings.cache_bytes() == found


def test_occupancy_is_of_the_threads_that_a_multiprocessor_has_room_for() -> None:
    asked: list[tuple[object, ...]] = []

    def call(name: str, *arguments: object) -> int:
        asked.append((name, *arguments))
        return 2

    card: Any = SimpleNamespace(call=call, attribute={"MAX_THREADS_PER_MULTIPROCESSOR": 2048}.__getitem__)
    found = driver.occupancy(card, "function", 256, 95744)
    assert found == {"blocks_per_multiprocessor": 2, "occupancy": 0.25}
    assert asked == [("cuOccupancyMaxActiveBlocksPerMultiprocessor", "function", 256, 95744)]


def test_clock_and_power_stand_beside_each_sample_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of the datasheet too; what the driver does not say is not measured."""
    monkeypatch.setattr(on_card_module, "gpus", lambda: (Gpu(0, "NVIDIA H200", 1 << 37, (9, 0)),))
    monkeypatch.setattr(Naive, "missing", lambda _: None)
    bench = Bench(Wmma(kernels=(Naive(),), sizes=((64, 64, 64),), dtype="fp16").plan(0), None)  # type: ignore[arg-type]
    (gemm,) = bench.plan.problems
    bench.verdicts["naive"] = bench.errors[gemm, "naive"] = verifying.Verdict(1, 0.0, 0.0)
    seconds = [gemm.flop / 98.95e12] * 3  # a tenth of 989.5 TFLOP/s
    bench.facts["naive"] = {}
    bench.times[gemm]["naive"] = Times(1, seconds, seconds, [State(1980.0, None), State(1500.0, None), None])
    (table,) = tables.timed(bench)
    (row,) = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row[name] for name in ("of datasheet", "MHz", "W", "occupancy")] == [
        "10.0 %",
        "1,740",
        "not measured",
        "not measured",
    ]
    bench.facts["naive"] = {"occupancy": 0.25}
    assert tables.timed(bench)[0].rows[0][table.columns.index("occupancy")] == "25.0 %"
    assert {one.name: one.value for one in tables.metrics(bench)}["64x64x64/naive/of_datasheet"] == pytest.approx(0.1)


def test_a_kernel_that_breaks_the_cards_context_is_the_only_one_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of the process can no longer run there, which is no fault of theirs."""
    monkeypatch.setattr(on_card_module, "gpus", lambda: GPUS)
    monkeypatch.setattr(driver, "missing", lambda _: None)
    monkeypatch.setattr(bench_module, "context_fault", lambda _: "an illegal memory access was encountered")
    said: list[str] = []
    here: Any = SimpleNamespace(say=said.append, note=said.append)
    stage = Wmma(kernels=(Naive(), Tuned(), Numpy()), dtype="fp16", sizes=((64, 64, 64),))
    bench = Bench(stage.plan(0), here)
    bench._wrong(Tuned(), verifying.Verdict(3, 0.0, 0.0, "writes beyond D"))
    reason = "needs a GPU that answers: tuned broke its context (an illegal memory access was encountered)"
    assert bench.absent["naive"] == reason and "tuned" not in bench.absent
    assert dict(tables.not_timed(bench))["tuned"] == "WRONG, so it was not timed: writes beyond D"
    assert reason in dict(tables.not_timed(bench))["naive"]


class Context:
    """Of a card, as far as kernels share it. `breaks_at`: N of the guilty product that breaks it, by `moment`: when
    it runs, or when it is timed once it was verified.
    """

    def __init__(self, moment: str, breaks_at: int) -> None:
        self.moment, self.breaks_at, self.broken = moment, breaks_at, False
        self.left = 5 if moment == "seconds" else 1

    def used(self, moment: str, gemm: Gemm, *, guilty: bool) -> None:
        if guilty and (moment, gemm.n) == (self.moment, self.breaks_at):
            self.left -= 1
            self.broken = self.left <= 0
        if self.broken:
            raise RunError("cuLaunchKernel: an illegal memory access was encountered")


CONTEXTS: list[Context] = []  # the last one is that of the card


class OfAContext(Matmul):
    """NumPy's product, on a card that may be broken."""

    def __init__(self, operands: Operands, threads: int, *, guilty: bool) -> None:
        super().__init__(operands, threads)
        self.guilty = guilty

    def run(self) -> None:
        CONTEXTS[-1].used("run", self.operands.gemm, guilty=self.guilty)
        super().run()

    def seconds(self, calls: int) -> float:
        CONTEXTS[-1].used("seconds", self.operands.gemm, guilty=self.guilty)
        return super().seconds(calls)


class First(Numpy):
    """A kernel of a GPU. Innocent."""

    processor: ClassVar[Literal["cpu", "gpu"]] = "gpu"
    yardstick: ClassVar[bool] = False

    def prepare(self, operands: Operands, threads: int) -> Launch:
        return OfAContext(operands, threads, guilty=type(self) is Guilty)


class Guilty(First):
    yardstick: ClassVar[bool] = True  # one of those of stage.around


class Last(First):
    pass


@pytest.mark.parametrize(
    ("moment", "breaks_at", "timed"),
    [
        ("run", 53, []),  # in the verification of all classes of problems
        ("run", 60, []),  # in that of the sizes
        ("seconds", 36, []),
        ("seconds", 60, [36]),
        ("run", 65, [36, 60]),  # of stage.around
        ("seconds", 65, [36, 60]),
    ],
)
@pytest.mark.wide
def test_what_was_measured_before_a_context_broke_stays(
    moment: str, breaks_at: int, timed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel is wrong; the others, before it and after it, are not, and their times are shown."""
    CONTEXTS.append(Context(moment, breaks_at))
    monkeypatch.setattr(bench_module, "is_ours", lambda _: True)
    monkeypatch.setattr(bench_module, "may_hang", lambda _: False)
    monkeypatch.setattr(verifying, "may_hang", lambda _: False)
    monkeypatch.setattr(bench_module, "context_fault", lambda _: "broken" if CONTEXTS[-1].broken else None)
    bench = bench_of(First(), Guilty(), Last(), Numpy(), sizes=(36, 60))
    around = measured(bench, 64)
    bench.rehearse()
    names = {type(one).__name__: one.name for one in bench.plan.kernels}
    wrong = [name for name, verdict in bench.verdicts.items() if verdict.fault]
    assert CONTEXTS[-1].broken and wrong == [names["Guilty"]]
    rows = dict(tables.not_timed(bench))
    for one in ("First", "Last"):
        assert rows[names[one]].endswith(f"needs a GPU that answers: {names['Guilty']} broke its context (broken)")
        assert [gemm.n for gemm, found in bench.times.items() if names[one] in found] == timed
    assert [gemm.n for gemm, found in bench.times.items() if "numpy" in found] == [36, 60]
    shown = [{row[0] for row in table.rows} for table in tables.timed(bench)]
    innocent = {names["First"], names["Last"]}
    assert shown == [{"numpy", *(innocent if size in timed else ())} for size in (36, 60)]
    measures = {one.name for one in tables.metrics(bench)}
    first = f"36x36x36/{names['First']}"
    assert (f"{first}/sustained" in measures) == (36 in timed)
    # Where others had the cores of the yardstick, as tests beside this one may, no share of it is kept.
    assert (f"{first}/share" in measures) == (36 in timed and not bench.is_uncertain(names["First"]))
    assert around is not None or breaks_at == 65  # where the fastest beside the guilty one is on the card too
    assert around is None or set(around.rates) == {"numpy"}
    tables.summary(bench)
    bench.above_yardstick()


def test_whatever_triton_or_torch_raises_is_one_message() -> None:
    class Failing:
        @one_message
        def build(self) -> None:
            raise AssertionError("libcuda.so cannot be found!\nPossible files are located at []")

        @one_message
        def refuse(self) -> None:
            raise UserError("ours")

    with pytest.raises(RunError, match=r"^AssertionError: libcuda.so cannot be found!$"):
        Failing().build()
    with pytest.raises(UserError, match=r"^ours$"):
        Failing().refuse()


FIRST = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void gemm(const half *A, const half *B, const float *C, float *D, int M, int N, int K, int lda,
                                int ldb, int ldc, float alpha, float beta) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::col_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums, c;
    const int at = blockIdx.x * 16 + blockIdx.y * 16 * ldc;
    wmma::fill_fragment(sums, 0.0f);
    wmma::fill_fragment(c, 0.0f);
    for (int k = 0; k < K; k += 16) {
        wmma::load_matrix_sync(a, A + blockIdx.x * 16 + k * lda, lda);
        wmma::load_matrix_sync(b, B + k + blockIdx.y * 16 * ldb, ldb);
        wmma::mma_sync(sums, a, b, sums);
    }
    if (beta != 0) wmma::load_matrix_sync(c, C + at, ldc, wmma::mem_col_major);
    for (int i = 0; i < c.num_elements; i++) c.x[i] = alpha * sums.x[i] + beta * c.x[i];
    wmma::store_matrix_sync(D + at, c, ldc, wmma::mem_col_major);
}
"""


@pytest.mark.skipif(not available(), reason="no g++")
def test_a_first_kernel_of_whole_tiles_says_so_and_is_verified_on_those(tmp_path: Path) -> None:
    """It was wrong at M=N=K=1, and only a class could say that it does not take that."""
    file = tmp_path / "first.cu"
    file.write_text(FIRST)
    plain = Source(file=str(file), block=(32, 1, 1))
    fault = str(verify(plain, all_cases("fp16"), plain.rehearse, 0).fault)
    assert "load_matrix_sync (line 12): a leading dimension of 1 elements is not a multiple of 16 bytes" in fault
    whole = Source(file=str(file), block=(32, 1, 1), multiples=(16, 16, 16))
    verdict = verify(whole, all_cases("fp16"), whole.rehearse, 0)
    assert (verdict.n, verdict.fault) == (10, None)
    assert whole.name == "first_block_32_1_1"
    narrow = Source(file=str(file), multiples=(32, 16, 1))
    assert narrow.refusal(Gemm(m=32, n=16, k=1, dtype="fp16")) is None
    assert narrow.refusal(Gemm(m=16, n=32, k=1, dtype="fp16", order="row")) is None
    said = "takes M, N and K that are multiples=[32, 16, 1]"
    assert narrow.refusal(Gemm(m=16, n=32, k=1, dtype="fp16")) == said
    by_rows = "by rows takes N, M and K that are multiples=[32, 16, 1]"
    assert narrow.refusal(Gemm(m=32, n=16, k=1, dtype="fp16", order="row")) == by_rows


@pytest.mark.skipif(not available(), reason="no g++")
@pytest.mark.parametrize("side", [16, pytest.param(64, marks=pytest.mark.wide), 128])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("+ k * lda, lda", "+ k * M, M"), ("D + at, c, ldc", "D + at, c, lda"), ("k < K", "k < M"), ("k < K", "k < N")],
)
def test_what_whole_tiles_leave_to_be_verified_tells_the_sizes_apart(
    right: str, wrong: str, side: int, tmp_path: Path
) -> None:
    """Of tiles of 32 and more four problems were left, without padding and with K as large as M."""
    file = tmp_path / "first.cu"
    file.write_text(FIRST.replace(right, wrong))
    kernel = Source(file=str(file), block=(32, 1, 1), multiples=(side, side, side))
    assert wrong in file.read_text()
    assert verify(kernel, all_cases("fp16"), kernel.rehearse, 0).fault is not None


def test_a_launch_of_the_users_is_named_where_it_may_be_the_mistake(tmp_path: Path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text("")
    with pytest.raises(UserError, match=r"mine: block=\[64, 64, 1\]: 4,096 threads; CUDA runs 1,024 at most"):
        Source(file=str(file), block=(64, 64, 1))
    with pytest.raises(UserError, match=r"mine: block=\[1, 1, 65\]: 65 threads along z; at most 64"):
        Source(file=str(file), block=(1, 1, 65))
    with pytest.raises(UserError, match=r"mine: dynamic=232449: no card has more than 232,448 bytes for a block"):
        Source(file=str(file), dynamic=232_449)
    for none in ((0, 1, 1), (-16, -16, 1)):
        with pytest.raises(ValidationError, match=r"block\.0"):
            Source(file=str(file), block=none)
    settings = "block=[256, 1, 1], tile=[16, 16], dynamic=0, for M, N and K that are multiples=[1, 1, 1]"
    assert Source(file=str(file)).launched == settings
    assert Naive().launched == ""
