"""Kernels of a CPU: each is right on every class of problems that it takes, and what is wrong is caught."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, cast

import ml_dtypes
import numpy as np
import pytest
from command import write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from pipeline.contracts.kernels import WARNINGS, Kernel, Launch
from pipeline.errors import RunError, UserError, cut
from pipeline.kernels import named
from pipeline.kernels.check import check
from pipeline.kernels.cpu import ceilings, compiled, openmp
from pipeline.kernels.cpu.of_file import Source
from pipeline.kernels.cuda.grid_stride import GridStride
from pipeline.kernels.gemm import DTYPES, Gemm, Operands, Order, decode, encode, matrix, operands, views
from pipeline.kernels.timing import in_turns
from pipeline.kernels.verify import WHOLE_FLOP, Case, all_cases, verify
from pipeline.machine.others import allowed_cores
from pipeline.runs.result import Metric
from pipeline.spec import spec
from pipeline.tracking.names import legal_name

CPU = [kernel for kernel in named.every() if kernel.processor == "cpu" and kernel.missing() is None]
TAKEN = [(kernel, dtype) for kernel in CPU for dtype in kernel.dtypes]
GEMM = Gemm(m=37, n=53, k=71, alpha=-0.5, beta=1.0, pad=(3, 5, 7))


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled here, not taken from the user's cache."""
    os.environ["PIPELINE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(("kernel", "dtype"), TAKEN, ids=lambda one: one if isinstance(one, str) else one.name)
def test_right_on_every_class_of_problems(kernel: Kernel, dtype: str) -> None:
    verdict = verify(kernel, all_cases(dtype), partial(kernel.prepare, threads=2), seed=0)
    assert verdict.fault is None
    taken = [gemm for _, gemm, _, _ in all_cases(dtype) if kernel.refusal(gemm) is None]
    assert verdict.n == len(taken) >= 30
    assert 0 <= verdict.error <= 1


@settings(max_examples=60)
@given(
    kernel=st.sampled_from([kernel for kernel in CPU if kernel.rung is not None]),
    sizes=st.tuples(st.integers(1, 130), st.integers(1, 130), st.integers(1, 800)),
    order=st.sampled_from(["column", "row"]),
    pad=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    scales=st.tuples(st.sampled_from([0.0, 1.0, -0.5, 3.0]), st.sampled_from([0.0, 1.0, -0.5])),
    threads=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_right_whatever_the_sizes(
    kernel: Kernel,
    sizes: tuple[int, int, int],
    order: Order,
    pad: tuple[int, int, int],
    scales: tuple[float, float],
    threads: int,
    seed: int,
) -> None:
    m, n, k = sizes
    made = operands(Gemm(m=m, n=n, k=k, order=order, pad=pad, alpha=scales[0], beta=scales[1]), seed)
    launch = kernel.prepare(made, threads)
    launch.run()
    assert check(made, launch.result()).fault is None
    first = launch.result().copy()
    launch.run()  # nothing is left over from the run before
    assert first.tobytes() == launch.result().tobytes()


def right(gemm: Gemm, values: str = "uniform") -> tuple[object, np.ndarray]:
    """Operands, and the buffer of a D that is right."""
    made = operands(gemm, 1, "integers" if values == "integers" else "uniform")
    a, b, c, _ = views(made)
    buffer = made.d.copy()
    exact = gemm.alpha * (decode(a, gemm.dtype) @ decode(b, gemm.dtype)) + gemm.beta * c
    matrix(buffer, gemm.m, gemm.n, gemm.ldc, gemm.order)[...] = exact
    return made, buffer


@pytest.mark.parametrize("order", ["column", "row"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_check_lets_rounding_pass_and_nothing_else(dtype: str, order: Order) -> None:
    gemm = replace(GEMM, dtype=dtype, order=order, alpha=-1.0)
    made, buffer = right(gemm)
    assert check(made, buffer).fault is None  # type: ignore[arg-type]

    def fault(place: tuple[int, int], value: float) -> str:
        wrong = buffer.copy()
        matrix(wrong, gemm.m, gemm.n, gemm.ldc, gemm.order)[place] = value
        return str(check(made, wrong).fault)  # type: ignore[arg-type]

    value = matrix(buffer, gemm.m, gemm.n, gemm.ldc, gemm.order)[36, 52]
    assert fault((36, 52), value + (1 if dtype == "int8" else 1e-3)).startswith(
        "1 of 1961 elements are wrong: D[36,52]"
    )
    unwritten = check(made, made.d.copy()).fault  # type: ignore[arg-type,attr-defined]
    assert str(unwritten).startswith("1961 of 1961 elements are wrong: D[0,0]")
    assert str(unwritten).endswith("; all are as D was before the run: not written, or added to")
    beside = buffer.copy()
    beside[gemm.ldc - 1] = 0  # behind the first column or row
    assert check(made, beside).fault == f"writes beside D: 1 number between its {order}s"  # type: ignore[arg-type]
    if dtype != "int8":
        assert fault((0, 0), np.nan).startswith("1 of 1961 elements are wrong: D[0,0] = nan")


def test_what_was_not_written_is_counted() -> None:
    made, buffer = right(GEMM)
    d = matrix(buffer, GEMM.m, GEMM.n, GEMM.ldc, GEMM.order)
    d[0, 0] = 1e3
    d[0, 1:3] = matrix(made.d, GEMM.m, GEMM.n, GEMM.ldc, GEMM.order)[0, 1:3]  # type: ignore[attr-defined]
    said = str(check(made, buffer).fault)  # type: ignore[arg-type]
    assert said.startswith("3 of 1961 elements are wrong: D[0,0] = 1000, not ")
    assert said.endswith("; 2 of them are as D was before the run: not written, or added to")


@pytest.mark.parametrize(("dtype", "name"), [("fp32", "tf32"), ("fp16", "fp16"), ("bf16", "bf16")])
def test_sums_that_were_kept_in_a_coarser_dtype_are_said_to_be(dtype: str, name: str) -> None:
    gemm = replace(GEMM, dtype=dtype)
    made, buffer = right(gemm)
    d = matrix(buffer, gemm.m, gemm.n, gemm.ldc, gemm.order)
    exact = d.copy()
    said = f"; the errors are as small as those of sums in {name}: keep them in fp32"
    d[...] = decode(encode(exact, name), name)
    assert str(check(made, buffer).fault).endswith(said)  # type: ignore[arg-type]
    d[...] = 0.9 * exact
    fault = str(check(made, buffer).fault)  # type: ignore[arg-type]
    assert "elements are wrong" in fault and said not in fault
    d[...] = exact
    d[0, 0] += 0.25  # as of one product that is missing: all of D hardly feels it
    fault = str(check(made, buffer).fault)  # type: ignore[arg-type]
    assert fault.startswith("1 of 1961 elements are wrong") and said not in fault


def test_integers_have_to_be_exact() -> None:
    made, buffer = right(replace(GEMM, alpha=2.0), "integers")
    assert check(made, buffer).fault is None  # type: ignore[arg-type]
    buffer[0] += 2.0**-10
    assert "1 of 1961" in str(check(made, buffer).fault)  # type: ignore[arg-type]


def test_one_wrong_element_of_a_large_product_is_found() -> None:
    """Also in a row that is not compared element by element."""
    gemm = Gemm(m=900, n=700, k=500)
    assert gemm.flop > WHOLE_FLOP
    made, buffer = right(gemm)
    rows = np.array([0, 5, 899])
    assert check(made, buffer, rows).fault is None  # type: ignore[arg-type]
    matrix(buffer, 900, 700, 900, "column")[444, 333] += 0.05
    assert str(check(made, buffer, rows).fault).startswith("1 of 900 rows are wrong")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_hides_no_other_error_of_a_large_product(value: float) -> None:
    """By a bound of D as the kernel left it an infinity made everything right that is not compared by element."""
    gemm = Gemm(m=900, n=700, k=500)
    made, buffer = right(gemm)
    rows = np.array([0, 5, 899])
    d = matrix(buffer, 900, 700, 900, "column")
    d[444, 333] = value
    assert str(check(made, buffer, rows).fault).startswith("1 of 900 rows are wrong")  # type: ignore[arg-type]
    d[445, 1] += 10
    assert str(check(made, buffer, rows).fault).startswith("2 of 900 rows are wrong")  # type: ignore[arg-type]


@pytest.mark.parametrize("row", range(100, 110))
def test_two_elements_that_have_changed_places_are_found(row: int) -> None:
    """Their errors cancel in half of the sums over random signs."""
    gemm = Gemm(m=900, n=700, k=500)
    made, buffer = right(gemm)
    d = matrix(buffer, 900, 700, 900, "column")
    d[row, [3, 4]] = d[row, [4, 3]]
    fault = check(made, buffer, np.array([0, 5, 899])).fault  # type: ignore[arg-type]
    assert str(fault).startswith("1 of 900 rows are wrong")


def test_numbers_that_belong_to_no_matrix_are_poisoned() -> None:
    made = operands(GEMM, 0)
    assert made.a.size == GEMM.lda * GEMM.k and np.isnan(made.a).sum() == 3 * GEMM.k
    assert np.isnan(made.b).sum() == 5 * GEMM.n
    assert np.isnan(made.d).all()
    whole = operands(replace(GEMM, dtype="int8"), 0)
    assert set(np.unique(whole.a)) == set(range(-128, 128))  # 113 is the poison, and a number like the others
    assert (whole.a == 113).sum() > 3 * GEMM.k
    assert GEMM.turned.turned == GEMM


class Faulty(Launch):
    """A product that is right, and something else beside."""

    facts: dict[str, object] = {}  # noqa: RUF012

    def __init__(self, how: str, operands: Operands) -> None:
        self.how, self.operands, self.d, self.runs = how, operands, operands.room(), 0

    def run(self) -> None:
        made = self.operands
        if self.how == "lazy" and self.runs:
            return
        self.runs += 1
        if self.how == "zeroes":
            made.a[...] = 0
        a, b, _, d = views(Operands(made.gemm, made.a, made.b, made.c, self.d))
        d[...] = a @ b
        if self.how == "beyond":
            whole = self.d.base
            assert whole is not None
            whole[whole.size // 2 + self.d.size] = 0
        if self.how == "a row too far":
            whole, behind = self.d.base, made.a.base
            assert whole is not None and behind is not None
            whole[whole.size // 2 + self.d.size] = behind[behind.size // 2 + made.a.size] * np.float32(2)
        if self.how == "c":
            made.c[-1] = 0

    def result(self) -> np.ndarray:
        return self.d


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("right", "None"),
        ("zeroes", "at M=N=K=16, fp32, column-major: writes into A, or beside"),
        ("c", "writes into C, or beside"),
        ("beyond", "writes beyond D: 1 number before or after its buffer"),
        ("a row too far", "writes beyond D: 1 number before or after its buffer"),  # NaN, from what lies behind A
        ("lazy", "256 of 256 elements are wrong: D[0,0] = nan"),
    ],
)
def test_what_a_kernel_does_beside_its_product_is_seen(how: str, said: str) -> None:
    problem: Case = ("sizes", Gemm(m=16, n=16, k=16), "uniform", False)
    kernel = next(kernel for kernel in CPU if kernel.name == "numpy")
    verdict = verify(kernel, [problem], partial(Faulty, how), seed=0)
    assert said in str(verdict.fault)
    assert str(verdict.fault).endswith("in its second run") == (how == "lazy")


def test_a_kernel_that_was_verified_on_nothing_is_wrong() -> None:
    kernel = next(kernel for kernel in CPU if kernel.name == "numpy")
    verdict = verify(kernel, [("sizes", Gemm(m=1, n=1, k=1, dtype="int8"), "integers", False)], kernel.rehearse, seed=0)
    assert verdict.fault == "takes none of the problems on which it would be verified"


def test_encode_rounds_as_hardware_does() -> None:
    values = np.random.default_rng(0).normal(size=10_000).astype(np.float32) * np.float32(1e3)
    values[:3] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, -0.0  # ties, to even
    bits = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert (encode(values, "bf16") == bits).all()
    assert (decode(bits, "bf16") == values.astype(ml_dtypes.bfloat16).astype(np.float64)).all()
    tf32 = encode(values, "tf32")
    assert not (tf32.view(np.uint32) & 0x1FFF).any()
    assert (np.abs(tf32 - values) <= 2.0**-11 * np.abs(values)).all()


def test_words_name_kernels_and_a_wrong_one_is_refused() -> None:
    rungs = [kernel.rung for kernel in CPU if kernel.rung is not None]
    assert rungs == list(range(len(rungs)))
    assert [kernel.name for kernel in CPU if kernel.yardstick and "fp32" in kernel.dtypes] == ["numpy"]
    with pytest.raises(UserError, match=r"stage.kernels=nump: no such choice \(did you mean numpy\?\); choose from"):
        named.kernels_of(("nump",))
    with pytest.raises(UserError, match=r"^stage.kernels=\[numpy,numpy\]: numpy is named twice; leave one out$"):
        named.kernels_of(("numpy", "numpy"))


@spec
class Mat(Kernel):
    """A kernel of a user's with settings."""

    processor: ClassVar[Literal["cpu", "gpu"]] = "cpu"
    dtypes: ClassVar[tuple[str, ...]] = ("fp32",)

    mode: str
    block: tuple[int, ...] = (8, 8)
    scale: float = Field(default=1.0, gt=0)

    def prepare(self, operands: Operands, threads: int) -> Launch:
        raise NotImplementedError


@spec
class Called(Mat):
    """And whose name does not say with which."""

    @property
    def name(self) -> str:
        return "mine"


def test_a_node_without_a_class_is_shown_one_for_kernels() -> None:
    """The example was a model: "a spec class such as pipeline.models.mlp.Mlp"."""
    said = (
        "stage.kernels: {file: 'my/fast.cu'}: needs _target_: <module>.<class>, such as pipeline.kernels.cuda.of_file"
    )
    with pytest.raises(UserError) as raised:
        named.kernels_of([{"file": "my/fast.cu"}])
    assert str(raised.value) == f"{said}.Source for that file"
    with pytest.raises(UserError) as raised:
        named.kernels_of([{"block": 64}])
    assert str(raised.value) == "stage.kernels: {block: 64}: needs _target_: <module>.<class>"


def test_a_wrong_setting_of_one_kernel_among_several_says_of_which() -> None:
    nodes = [{"_target_": f"{GridStride.__module__}.GridStride", "work": work} for work in (2, 0)]
    reason = "stage.kernels.work=0: should be greater than or equal to 1"
    with pytest.raises(UserError) as raised:
        named.kernels_of(["numpy", *nodes])
    assert str(raised.value) == f"{reason}; this is kernel 3 of 3, {nodes[1]['_target_']}"
    with pytest.raises(UserError) as raised:
        named.kernels_of(nodes[1:])
    assert str(raised.value) == reason


def test_kernels_of_one_class_are_told_apart_by_their_settings() -> None:
    found = named.kernels_of(("numpy", Mat(mode="ok"), Mat(mode="oob"), Mat(mode="my/a b", block=(1, 2), scale=0.5)))
    names = [kernel.name for kernel in cast("tuple[Kernel, ...]", found)]
    assert names == ["numpy", "mat_mode_ok", "mat_mode_oob", "mat_mode_my_a_b_block_1_2_scale_0.5"]
    for name in (*names, Mat(mode="x" * 1000).name):
        Metric(f"1024x1024x1024/{name}/relative_error", 1)
        assert legal_name(name) == name and len(name) <= 80


@pytest.mark.parametrize(
    ("kernels", "said"),
    [
        (
            (Mat(mode="ok"), "numpy", Mat(mode="ok", scale=1.0)),
            "stage.kernels=[mat_mode_ok,numpy,mat_mode_ok]: mat_mode_ok is named twice; leave one out",
        ),
        (
            ({"_target_": f"{__name__}.Called", "mode": "ok"}, {"_target_": f"{__name__}.Called", "mode": "b"}),
            "stage.kernels=[test_kernels.Called,test_kernels.Called]: test_kernels.Called with mode=ok and with mode=b "
            "are both called mine; let the property `name` of the class say what differs",
        ),
    ],
    ids=["equal", "of one name"],
)
def test_kernels_of_one_name_are_refused(
    kernels: tuple[object, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.allowed._taken", ("pipeline", __name__))
    with pytest.raises(UserError) as error:
        named.kernels_of(kernels)
    assert str(error.value) == said


def test_a_file_is_told_apart_by_its_launch(tmp_path: Path) -> None:
    """Two nodes of a .cu file were refused as one that is named twice."""
    file = tmp_path / "fast.cu"
    file.write_text("")
    node = {"_target_": "pipeline.kernels.cuda.of_file.Source", "file": str(file)}
    found = named.kernels_of((node, node | {"block": [16, 16, 1]}))
    assert [kernel.name for kernel in cast("tuple[Kernel, ...]", found)] == ["fast", "fast_block_16_16_1"]
    with pytest.raises(UserError, match=r"fast\.cu is named twice; leave one out$"):
        named.kernels_of((node, node))


def test_two_files_of_one_stem_are_named(tmp_path: Path) -> None:
    files = [str(tmp_path / folder / "omp.cpp") for folder in ("my", "my2")]
    for file in files:
        Path(file).parent.mkdir()
        Path(file).write_text(TEAM)
    one, other = files
    for last in (other, {"_target_": "pipeline.kernels.cpu.of_file.Source", "file": other}, Source(file=other)):
        with pytest.raises(UserError) as error:
            named.kernels_of((one, "numpy", last))
        assert str(error.value) == (
            f"stage.kernels=[{one},numpy,{other}]: {one} and {other} are both called omp: a kernel is called by its "
            "file's stem, its class or its word; rename one"
        )


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("f.cxx", "files of kernels end in .cpp, .cc or .cu; rename it"),
        ("f.CPP", "files of kernels end in .cpp, .cc or .cu; rename it"),
        ("f", "files of kernels end in .cpp, .cc or .cu; rename it"),
        ("f.py", "of a kernel in Python name the class, as f.Fast"),
        ("none.cxx", "no such file"),
        ("folder", "a folder; name a file in it, as folder/fast.cu"),
        ("empty", "a folder; name a file in it, as empty/fast.cpp"),
    ],
)
def test_a_file_of_another_ending_is_refused_as_a_file(file: str, said: str, tmp_path: Path) -> None:
    for name in ("f.cxx", "f.CPP", "f", "f.py"):
        (tmp_path / name).write_text("")
    for name in ("empty", "folder"):
        (tmp_path / name).mkdir()
    for name in ("fast.py", "fast.cu"):
        (tmp_path / "folder" / name).write_text("")
    with pytest.raises(UserError) as error:
        named.kernels_of((str(tmp_path / file),))
    assert str(error.value) == f"stage.kernels={cut(tmp_path / file)}: {said}"


def test_a_source_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again when it, its flags or its compiler change."""
    program = compiled.compiler()
    assert program is not None
    log, wrapper = tmp_path / "log", tmp_path / "g++"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*|*--help*) ;; *) echo compiled >> {log} ;; esac\nexec {program} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    source = tmp_path / "one.cpp"
    for text, flags, times in (("1", (), 1), ("1", (), 1), ("2", (), 2), ("2", ("-DA",), 3), ("1", (), 3)):
        source.write_text(f'extern "C" int one() {{ return {text}; }}\n')
        library = compiled.compiled(source, (), flags)
        assert library.loaded()["one"]() == int(text)
        assert log.read_text().count("compiled") == times
    source.write_text("int one( {")
    with pytest.raises(UserError, match=r"one.cpp: does not compile \(g\+\+\): .*one.cpp:1:\d+: error: "):
        compiled.compiled(source)


@pytest.mark.parametrize(
    ("ends", "said"), [("exit 3", "ended with exit status 3"), ("kill -9 $$", "was ended by SIGKILL")]
)
def test_a_compiler_that_gives_no_reason_is_named(
    ends: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message ended with a colon."""
    silent, source = tmp_path / "silent", tmp_path / "one.cpp"
    silent.write_text(f'#!/bin/sh\ncase "$*" in *--version*|*--help*) exit ;; esac\n{ends}\n')
    silent.chmod(0o755)
    source.write_text("")
    monkeypatch.setenv("CXX", str(silent))
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    with pytest.raises(UserError) as raised:
        compiled.compiled(source)
    reason = f"{silent}, which CXX names, {said} and gave no reason"
    assert str(raised.value) == f"one.cpp: does not compile (silent): {reason}"


def test_a_header_counts_as_the_source_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel of a user's includes it."""
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    source, header = tmp_path / "one.cpp", tmp_path / "a header.h"
    source.write_text('#include <cmath>\n#include "a header.h"\nextern "C" int gemm() { return NUMBER; }\n')
    for number in (1, 2):
        header.write_text(f"#define NUMBER {number}\n")
        kernel = Source(file=str(source))
        assert kernel.user_files == (source, header)
        assert kernel.library("fp32").loaded()["gemm"]() == number


def test_a_header_of_the_system_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a library that is installed beside the compiler's own: it is not the user's, and decides what is computed."""
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    (tmp_path / "include").mkdir()
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(tmp_path / "include"))
    source, header = tmp_path / "one.cpp", tmp_path / "include" / "library.h"
    source.write_text('#include <library.h>\nextern "C" int gemm() { return NUMBER; }\n')
    for number in (1, 2):
        header.write_text(f"#define NUMBER {number}\n")
        kernel = Source(file=str(source))
        assert kernel.user_files == (source,)
        assert kernel.library("fp32").loaded()["gemm"]() == number


def test_a_header_that_a_flag_brings_in_counts(tmp_path: Path) -> None:
    source = tmp_path / "one.cpp"
    source.write_text('#ifdef __OPTIMIZE__\n#include "fast.h"\n#endif\n')
    (tmp_path / "fast.h").write_text("")
    assert compiled.included(source) == (tmp_path / "fast.h",)


def test_a_source_that_changes_while_it_is_compiled_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compiler has read is not what the file is called by."""
    program, wrapper, source = compiled.compiler(), tmp_path / "g++", tmp_path / "one.cpp"
    changes = f'case "$*" in *-o*) echo \'extern "C" int one() {{ return 2; }}\' > {source} ;; esac'
    wrapper.write_text(f'#!/bin/sh\n{program} "$@"; status=$?\n{changes}\nexit $status\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    source.write_text('extern "C" int one() { return 1; }\n')
    with pytest.raises(UserError, match=r"^one\.cpp: was changed while it was compiled; run the command again$"):
        compiled.compiled(source)
    assert not list((tmp_path / "cache").rglob("*.so"))
    assert compiled.compiled(source).loaded()["one"]() == 2


def test_a_source_may_have_bytes_of_another_encoding(tmp_path: Path) -> None:
    """The compiler shows the line, which was read as UTF-8: UnicodeDecodeError, "prepare raises"."""
    file = tmp_path / "mine.cpp"
    text = (Path(__file__).parent / "own_kernel.cpp").read_text()
    file.write_text(text.replace("float sum = 0;", "float sum = 0; int one; // Größe"), encoding="latin-1")
    kernel = Source(file=str(file))
    launch = kernel.prepare(operands(GEMM, 0), 1)
    assert "unused variable" in str(launch.facts[WARNINGS])
    file.write_text(text.replace("float sum = 0;", "float sum = ; // Größe"), encoding="latin-1")
    with pytest.raises(UserError, match=r"^mine\.cpp: does not compile .*mine\.cpp:\d+:\d+: error: "):
        kernel.prepare(operands(GEMM, 0), 1)


def test_a_library_without_the_compilers_words_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of before they were kept: its warnings would never be said."""
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "loud.cpp"
    source.write_text("#warning look here\n")
    found = compiled.compiled(source)
    assert len(found.warnings) == 1 and "look here" in found.warnings[0]
    found.file.with_suffix(".txt").unlink()
    assert compiled.compiled(source).warnings == found.warnings


TEAM = """#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_num_threads() { return 1; }
#endif
extern "C" void gemm(long m, long n, long k, float alpha, const float *a, long lda, const float *b, long ldb,
                     float beta, const float *c, long ldc, float *d, int threads)
{
    (void)beta; (void)c;
    #pragma omp parallel
    {
        const float right = omp_get_num_threads() == threads;
        #pragma omp for
        for (long j = 0; j < n; j++)
            for (long i = 0; i < m; i++) {
                float sum = 0;
                for (long p = 0; p < k; p++) sum += a[i + p * lda] * b[p + j * ldb];
                d[i + j * ldc] = right * alpha * sum;
            }
    }
}
"""
SMALL: Case = ("sizes", Gemm(m=16, n=16, k=16), "uniform", False)


@pytest.mark.skipif(not openmp.available(), reason="no OpenMP")
@pytest.mark.parametrize("threads", [1, 3])
def test_openmp_of_a_users_has_the_threads_that_the_receipt_names(threads: int, tmp_path: Path) -> None:
    """In a spawned process: torch has started threads of the same library in this one, which a fork would lack."""
    import torch

    torch.rand(2**20).sin()
    file = tmp_path / "team.cpp"
    file.write_text(TEAM)
    kernel = Source(file=str(file))
    verdict = verify(kernel, [SMALL], partial(kernel.prepare, threads=threads), seed=0)
    assert verdict.fault is None
    assert verdict.facts["threads"] == threads and str(verdict.facts["flags"]).endswith(" -fopenmp")
    assert WARNINGS not in verdict.facts
    file.write_text(TEAM.replace("#pragma", "// pragma"))
    assert kernel.flags("fp32") == ()


def test_openmp_that_the_compiler_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper, file = tmp_path / "g++", tmp_path / "team.cpp"
    wrapper.write_text(f'#!/bin/sh\ncase "$*" in *-fopenmp*) exit 1 ;; esac\nexec {compiled.compiler()} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    file.write_text(TEAM)
    facts = Source(file=str(file)).prepare(operands(SMALL[1], 0), 2).facts
    assert "openmp" not in str(facts["flags"])
    assert cast(list[str], facts[WARNINGS])[0].startswith("#pragma omp is ignored: the compiler does not take -fopenmp")


@pytest.mark.wide
def test_threads_are_kept_on_different_cores_while_they_work() -> None:
    """And may go where they could before, afterwards: this process computes other things too."""
    before, cores, seen = os.sched_getaffinity(0), len(allowed_cores()), set[frozenset[int]]()
    work = ceilings.MultiplyAdds(cores, "float32")
    rounds = ceilings._enough(work.seconds)
    busy = threading.Thread(target=work.seconds, args=(300 * rounds,))  # 1.2 s
    busy.start()
    while busy.is_alive():
        for task in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                seen.add(frozenset(os.sched_getaffinity(int(task.name))))
    assert seen >= {frozenset({core}) for core in before}
    busy.join()
    assert {frozenset(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()} == {
        frozenset(before)
    }


@pytest.mark.parametrize(
    ("siblings", "order"),
    [(("0-1", "0-1", "2-3", "2-3"), [0, 2, 1, 3]), (("0,2", "1,3", "0,2", "1,3"), [0, 1, 2, 3]), ((), [0, 1, 2, 3])],
)
def test_threads_of_the_probe_have_physical_cores_of_their_own_first(
    siblings: Sequence[str], order: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four threads on the first two of four cores that have two each, the peak was half of what kernels reach."""
    write_files(tmp_path, {f"cpu{core}/topology/thread_siblings_list": f"{of}\n" for core, of in enumerate(siblings)})
    monkeypatch.setattr(ceilings, "CORES", tmp_path)
    monkeypatch.setattr(ceilings, "allowed_cores", lambda: [0, 1, 2, 3])
    assert ceilings.cores_apart() == order


def test_a_thread_of_the_probe_is_kept_on_the_first_of_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    last = allowed_cores()[-1]
    monkeypatch.setattr(ceilings, "cores_apart", lambda: [last])
    before, seen = os.sched_getaffinity(0), set[frozenset[int]]()
    work = ceilings.MultiplyAdds(1, "float32")
    busy = threading.Thread(target=work.seconds, args=(100 * ceilings._enough(work.seconds),))
    busy.start()
    while busy.is_alive():
        with suppress(ProcessLookupError):
            seen.add(frozenset(os.sched_getaffinity(cast(int, busy.native_id))))
    assert frozenset({last}) in seen <= {frozenset({last}), frozenset(before)}


@pytest.mark.wide
def test_the_peak_does_not_fall_with_threads_that_have_to_be_started() -> None:
    """Threads beyond the cores add nothing, and their start is not part of the time."""
    cores = len(allowed_cores())
    for _ in range(5):  # others may come between the two
        few, many, again = (ceilings.measured(threads) for threads in (cores, 16 * cores, cores))
        if many.peak > 0.4 * few.peak and many.cores_had > 0.5 * few.cores_had:  # of the cores, not of the threads
            return
    at_work = ceilings.others_at_work(min(few.cores_had, again.cores_had), cores)
    assert at_work is not None, (few, many)
    pytest.skip(at_work)


def test_ceilings_bound_what_a_kernel_can_do() -> None:
    found = ceilings.measured(1)
    assert 0 < found.cores_had < 1.05
    assert max(found.flop_per_s) > 1e9 and max(found.bytes_per_s) > 1e8  # other processes may slow down any
    made = operands(Gemm(m=384, n=384, k=384), 0)
    launch = next(kernel for kernel in CPU if kernel.name == "cpu_packed").prepare(made, 1)
    launch.run()
    fastest = made.gemm.flop / min(launch.seconds(1) for _ in range(9))
    peak = max(found.peak, *(ceilings.measured(1).peak for _ in range(2)))  # others may have had the core before
    assert fastest < 1.15 * peak  # of a processor whose clock may change in between


def test_the_probe_knows_float64() -> None:
    turns = [[max(ceilings.multiply_adds(1, dtype)[0]) for dtype in ("float32", "float64")] for _ in range(3)]
    narrow, wide = (max(rates) for rates in zip(*turns, strict=True))  # others may have the core in any turn
    assert 0.3 < wide / narrow < 0.7  # half as many of them fit a register
    assert max(ceilings.stream(1, "float64", ("triad",)).bytes_per_s["triad"]) > 1e8
    with pytest.raises(ValueError, match="dtype=float16: choose from float32, float64"):
        ceilings.multiply_adds(1, "float16")


def test_a_wrong_kernel_of_stream_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "LARGEST", 2**22)
    monkeypatch.setattr(ceilings, "SMALLEST", 2**22)
    for dtype in ceilings.DTYPES:
        found = ceilings.stream(1, dtype)
        assert list(found.bytes_per_s) == ["copy", "scale", "add", "triad"]
        assert all(max(samples) > 1e8 for samples in found.bytes_per_s.values())
    monkeypatch.setitem(ceilings.STREAM, "add", ceilings.STREAM["triad"]._replace(result=4.0))
    with pytest.raises(RunError, match=r"the probe's add gives 10.0 to 10.0, not 4.0"):
        ceilings.stream(1, "float64", ("add",))


def test_kernels_are_timed_in_turns() -> None:
    class Noted(Launch):
        facts: dict[str, object] = {}  # noqa: RUF012

        def __init__(self, name: str) -> None:
            self.name = name

        def run(self) -> None: ...

        def result(self) -> np.ndarray:
            return np.zeros(1)

        def seconds(self, calls: int) -> float:  # noqa: ARG002
            order.append(self.name)
            return 1.0

    order: list[str] = []
    launches = {name: Noted(name) for name in "abc"}
    times = in_turns(launches, dict.fromkeys(launches, 1.0), rounds=4, budget_s=10)
    rounds = ["".join(order[n : n + 3]) for n in range(0, 12, 3)]
    assert {"".join(sorted(one)) for one in rounds} == {"abc"}
    assert rounds[1::2] == [one[::-1] for one in rounds[::2]]  # none always follows the same one
    assert {len(one.burst) for one in times.values()} == {4}
    few = in_turns(launches, dict.fromkeys(launches, 1.0), rounds=4, budget_s=0.1)
    assert {len(one.sustained) for one in few.values()} == {3}
