"""stage=matmul: wrong products found out, right ones timed; intervals, crossovers, operands elsewhere, bad input."""

from __future__ import annotations

import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import own_matrices
import pytest
from command import done, environment, pipeline, refused
from matplotlib.backends.backend_agg import FigureCanvasAgg

from bench.matmul import agreeing
from pipeline.backends.shared.form_bench import WrongResult
from pipeline.backends.shared.matrices import Matrices
from pipeline.errors import Impossible, UserError
from pipeline.machine import installed
from pipeline.machine.device import Device, Gpu, Place
from pipeline.report.intervals import of_median
from pipeline.runs.json_files import read_json
from pipeline.runs.result import Metric, Result, read_result
from pipeline.spec import build_as
from pipeline.stages.by_framework import BACKENDS
from pipeline.stages.matmul import bench as matmul_bench
from pipeline.stages.matmul import figures, kernel, tables
from pipeline.stages.matmul import stage as matmul_stage
from pipeline.stages.matmul.bench import Bench, Plan, Side
from pipeline.stages.matmul.misplaced import misplaced
from pipeline.stages.matmul.problem import Operands, Problem, Reference, operands, rounded, signs_of
from pipeline.stages.matmul.rates import Rates, why_no_win, wins_from
from pipeline.stages.matmul.stage import Matmul
from pipeline.stages.matmul.timing import Found, Timing

HERE = Path(__file__).parent
NOTHING: Any = SimpleNamespace(seed=0, device=Device())  # the stage asks neither of the experiment for more
ROUNDS = 6
QUICK = ("stage=matmul", "tracking=none", "stage.sizes=[16,48]", "stage.starts=2", "stage.rounds=3")
PLAN = Plan(
    sides=(Side("numpy"),),
    dtypes=("float32", "float64"),
    sizes=(16, 32),
    starts=1,
    rounds=2,
    longest=1.0,
    cores=1,
    seed=0,
    limit=None,
    placed=None,
    ceilings=False,
)
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax")


def timed(matrices: Matrices, dtypes: tuple[str, ...] = ("float64",), longest: float = 10.0) -> list[Found]:
    """What its products of 48 × 48 matrices are found to be, against a ceiling of 1, 2, 3, ... TFLOP/s."""
    rounds = iter(range(1, 1000))
    timing = Timing(matrices, "cpu", lambda _dtype: 1e12 * next(rounds), seed=0, longest=longest)
    timing.verify(dtypes, [48])
    for _ in range(ROUNDS):
        timing.time()
    return timing.found


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_right_product_is_timed(dtype: str) -> None:
    (found,) = timed(own_matrices.Right(), (dtype,))
    assert (found.fault, found.missing, found.seen_dtype, found.device) == (None, None, dtype, "cpu")
    assert found.error is not None and 0 <= found.error <= Problem(dtype, 48).rounding
    assert len(found.samples) == ROUNDS and min(found.samples) > 0
    rates = Rates(found)
    shares = [2 * 48**3 / one / (1e12 * n) for n, one in enumerate(found.samples, 1)]  # of the same round
    assert rates.share is not None and rates.share.median == pytest.approx(statistics.median(shares))
    assert rates.share.ends == pytest.approx((min(shares), max(shares)))
    assert rates.rate.median == pytest.approx(statistics.median(2 * 48**3 / one / 1e9 for one in found.samples))


WRONG: dict[type[own_matrices.Right], str] = {
    own_matrices.Transposed: "its result differs from float64's by 1.",
    own_matrices.Narrow: "its result differs from float64's by ",
    own_matrices.Tf32: "its result differs from float64's by ",
    own_matrices.Float32: "its result is float32, not float64",
    own_matrices.Nan: "its result differs from float64's by nan of its norm",
    own_matrices.OneElement: "element (3, 5) of its result is ",
    own_matrices.Elsewhere: "its result is on gpu:0, not on cpu",
    own_matrices.Counted: "its result, when it was timed, differs from float64's by ",
    own_matrices.Refusing: "raised NotImplementedError: no such operation",
    own_matrices.Vanishing: "when it was timed, raised RuntimeError: device lost",
}


@pytest.mark.parametrize(("kind", "said"), WRONG.items(), ids=[kind.__name__ for kind in WRONG])
def test_a_wrong_product_has_no_times(kind: type[own_matrices.Right], said: str) -> None:
    (found,) = timed(kind())
    assert str(found.fault).startswith(said), found.fault
    assert found.samples == found.ceilings == []


def test_tf32_is_not_float32() -> None:
    (found,) = timed(own_matrices.Tf32(), ("float32",))
    assert "its result differs from float64's by " in str(found.fault)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_zeros_and_another_product_are_refused_of_a_large_short_one(dtype: str) -> None:
    """By sums alone: no product of that size is made. √N roundings would be more than all of it."""
    size = 8192
    generator, found = np.random.default_rng(0), np.zeros((size, size))
    sums, other = (each / np.linalg.norm(each) for each in generator.standard_normal((2, size)))
    reference = Reference(Problem(dtype, size), np.empty((0, 0)), sums, 1.0)
    with pytest.raises(WrongResult, match=r"differs from float64's by 1\.0e\+00 of its norm"):
        reference.compare_sums(found)
    found[:, 0] = signs_of(size)[0] * other  # whose sums are those of another product
    with pytest.raises(WrongResult, match="when it was timed"):
        reference.compare_sums(found)
    found[:, 0] = signs_of(size)[0] * sums
    reference.compare_sums(found)


@pytest.mark.parametrize("size", [16, 32])
def test_bfloat16_is_not_float16(size: int) -> None:
    """Float16 summed term by term is right, and a result that has bfloat16's bits is not."""
    made = operands(Problem("float16", size), 0)
    a, b = (each.astype(np.float16) for each in (made.a, made.b))
    by_terms = np.zeros((size, size), np.float16)
    for k in range(size):
        by_terms += a[:, k : k + 1] * b[k : k + 1]
    made.reference.compare(by_terms.astype(np.float64))
    with pytest.raises(WrongResult, match="its result differs from float64's by "):
        made.reference.compare(rounded(made.reference.exact, "bfloat16"))


def test_a_dtype_that_is_refused_or_too_slow_is_named() -> None:
    """Without a fault: nothing is wrong."""
    (found,) = timed(own_matrices.Right(), ("bfloat16",))
    assert (found.missing, found.fault) == ("has no bfloat16", None)
    (found,) = timed(own_matrices.Right(), longest=1e-9)
    assert str(found.missing).startswith("a product would take about ") and not found.samples


class NoLarge(own_matrices.Right):
    """Raises of 128 × 128, as for lack of memory."""

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if len(a) >= 128:
            raise MemoryError("no room")
        return super().product(a, b)


def test_a_size_that_raises_faults_no_other() -> None:
    timing = Timing(NoLarge(), "cpu", lambda _dtype: None, seed=0, longest=10.0)
    timing.verify(["float64"], [32, 64, 128])
    timing.time()
    assert [one.fault for one in timing.found] == [None, None, "raised MemoryError: no room"]
    assert [len(one.samples) for one in timing.found] == [1, 1, 0]


def test_a_product_that_is_refused_or_too_slow_is_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no process is started for it."""
    monkeypatch.setattr(matmul_bench, "answer", lambda *_: pytest.fail("a process was started"))
    sides = (Side("numpy"), Side("torch"), Side("jax"))
    plan = replace(PLAN, sides=sides, dtypes=("float16",), placed=("float16", 2048))
    bench = Bench(plan, {"jax": "not run"}, SimpleNamespace(say=print))  # type: ignore[arg-type]
    bench.products[sides[0]] = [replace(at(64, 1e-3).found, dtype="float16", error=0.0)]
    bench.products[sides[1]] = [Found("float16", 64, missing="has no float16")]
    for side in sides:
        bench.place(side)
    table = dict(tables.summary(bench))
    said = table["numpy, memory and misplaced"]
    assert said.startswith("not measured: by the best rate of stage.sizes a float16 product of 2,048 would take about ")
    assert table["torch, memory and misplaced"] == "not measured: no float16 product: has no float16"
    assert not list(bench.faults()) and set(bench.unplaced) == set(sides[:2])


def test_a_timer_that_does_not_wait_is_found_out() -> None:
    (found,) = timed(own_matrices.Launched())
    assert found.fault is None and min(found.samples) >= own_matrices.PRODUCT_S
    (found,) = timed(own_matrices.Unsynchronised())
    assert found.fault == "the timer was stopped before its result was computed" and found.samples == []


def test_a_reference_of_a_wrong_blas_is_refused() -> None:
    """NumPy's float64 is what all are compared with: it is compared by vectors."""
    made = operands(Problem("float64", 32), 0)
    assert made.reference.compare(made.a @ made.b) == 0
    wrong = operands(Problem("float64", 32), 0)
    off = Operands(wrong.problem, wrong.a.view(own_matrices.WrongBlas), wrong.b)
    with pytest.raises(WrongResult, match="is its BLAS right"):
        _ = off.reference


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_operands_are_numbers_of_their_dtype(dtype: str) -> None:
    made = operands(Problem(dtype, 40), 3)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    for each in (made.a, made.b):
        assert np.array_equal(each.astype(kind).astype(np.float64), each)
        assert np.abs(each).max() <= 1 and not np.allclose(each, each.T)
    assert not np.array_equal(made.a, made.b)
    assert not np.array_equal(made.a, operands(Problem(dtype, 40), 4).a)


def test_the_interval_of_a_median_holds_it_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    for n in (6, 9, 15, 40):
        samples = generator.exponential(size=(4000, n))  # whose median is log 2
        ends = [of_median(list(each)) for each in samples]
        held = [one is not None and one[0] <= np.log(2) <= one[1] for one in ends]
        assert 0.94 <= np.mean(held) <= 0.99
    assert of_median([9, 8, 7, 6, 5, 4, 3, 2, 1]) == (2, 8)
    assert of_median([1, 2, 3, 4, 5]) is None and of_median([]) is None


def at(size: int, seconds: float, copies: float | None = None) -> Rates:
    """A product whose samples differ by a part in a hundred."""
    spread = [1 + n / 900 for n in range(9)]
    with_copies = [] if copies is None else [copies * each for each in spread]
    times = [seconds * each for each in spread]
    return Rates(Found("float32", size, samples=times, with_copies=with_copies, calls=[1] * 9, ceilings=[None] * 9))


def test_a_gpu_wins_from_the_size_on_from_which_it_always_does() -> None:
    cpu = [at(64, 1e-6), at(256, 1e-4), at(512, 1e-3), at(1024, 1e-2)]
    gpu = [at(64, 1e-5, 1e-4), at(256, 2e-5, 2e-4), at(512, 5e-5, 1e-3), at(1024, 1e-4, 2e-3)]
    assert wins_from(gpu, cpu, copies=False) == 256
    assert wins_from(gpu, cpu, copies=True) == 1024  # at 512 they are the same
    assert wins_from(cpu, gpu, copies=False) is None
    back = [at(64, 1e-7, 1e-4), at(256, 2e-4, 2e-4), at(512, 5e-5, 1e-3)]
    assert wins_from(back, cpu, copies=False) == 512


def test_why_no_gpu_wins_is_said() -> None:
    """Slower, unclear, never timed and too few samples are not the same."""
    few = Rates(Found("float32", 64, samples=[1e-9] * 5, calls=[1] * 5, ceilings=[None] * 5))
    largest = "than it at 64, the largest that both were timed at"
    for gpu, said in {
        at(64, 1e-4): f"slower {largest}",
        at(64, 1e-6): f"not clearly quicker {largest}",
        at(128, 1e-9): "not measured: no size was timed by both",
        few: "not known: too few samples for an interval at 64",
    }.items():
        assert wins_from([gpu], [at(64, 1e-6)], copies=False) is None
        assert why_no_win([gpu], [at(64, 1e-6)], "it", copies=False) == said
    assert why_no_win([few], [few], "it", copies=True) == "not measured: no size was timed by both"


def test_copies_of_bfloat16_are_not_called_slow() -> None:
    sides = (Side("torch"), Side("torch", "gpu:0"))
    bench = Bench(replace(PLAN, sides=sides, dtypes=("bfloat16",)), {}, SimpleNamespace(say=print))  # type: ignore[arg-type]
    for side, seconds in zip(sides, (1e-3, 1e-5), strict=True):
        bench.products[side] = [replace(at(64, seconds).found, dtype="bfloat16", error=0.0)]
    table = dict(tables.summary(bench))
    assert table["torch gpu:0 bfloat16"] == "quicker than torch on the CPU from 64 on"
    said = "not measured: the host's matrices are NumPy's, which has no bfloat16"
    assert table["torch gpu:0 bfloat16 with copies"] == said


def test_where_a_gpu_wins_is_in_tables_metrics_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By times as a GPU would have them."""
    sides = (Side("torch"), Side("torch", "gpu:0"))
    bench = Bench(replace(PLAN, sides=sides, sizes=(256, 512, 1024)), {}, SimpleNamespace(say=print))  # type: ignore[arg-type]
    bench.products = {
        sides[0]: [at(256, 1e-4).found, at(512, 1e-3).found, at(1024, 1e-2).found],
        sides[1]: [at(256, 2e-4, 4e-4).found, at(512, 2e-4, 2e-3).found, at(1024, 3e-4, 5e-3).found],
    }
    for side in sides:
        for one in bench.products[side]:
            one.error = 1e-7
    table = dict(tables.summary(bench))
    assert table["torch gpu:0 float32"] == "quicker than torch on the CPU from 512 on"
    assert table["torch gpu:0 float32 with copies"] == "quicker than torch on the CPU from 1,024 on"
    assert "a GPU wins" not in table
    found = {metric.name: metric.value for metric in tables.metrics(bench)}
    assert (found["torch_gpu0/float32/wins_from"], found["torch_gpu0/float32/wins_from_with_copies"]) == (512, 1024)
    of_float32 = tables.of_dtype(bench, "float32")
    assert "with copies" in of_float32.columns and "of FMA" not in of_float32.columns
    assert [row[:2] for row in of_float32.rows[:2]] == [("256", "torch"), ("256", "torch gpu:0")]
    drawn: list[Any] = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, _: drawn.append(self.figure))
    monkeypatch.setattr(figures, "gpus", lambda: (Gpu(0, "a card", 2**30, (9, 0)), Gpu(1, "another", 2**30, (9, 0))))
    figures.draw(tmp_path / "rates.png", bench)
    said = drawn[0].get_suptitle()  # the card's name and what the dotted line is were not there
    assert "1 core, gpu:0: a card\n" in said and said.endswith("; dotted: a GPU is quicker from there on")


def test_the_last_panel_of_each_column_has_sizes_and_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three panels the second lies above an empty place, and had neither."""
    drawn: list[Any] = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, _: drawn.append(self.figure))
    dtypes = ("float32", "float64", "float16")
    bench = Bench(replace(PLAN, dtypes=dtypes, sizes=(256,)), {}, SimpleNamespace(say=print))  # type: ignore[arg-type]
    bench.products = {PLAN.sides[0]: [replace(at(256, 1e-4).found, dtype=one, error=1e-7) for one in dtypes]}
    figures.draw(tmp_path / "rates.png", bench)
    panels = drawn[0].axes[:3]
    labelled = [any(one.label1.get_visible() for one in axes.xaxis.get_major_ticks()) for axes in panels]
    assert labelled == [False, True, True]
    said = drawn[0].get_suptitle()  # of how many samples, and where, was in no figure
    assert said.startswith("products of N × N matrices on ") and "1 core\nmedians of 9 samples; bars: 95 %" in said
    assert [axes.get_xlabel() for axes in panels] == ["", "N", "N"]


def test_rates_and_sizes_can_be_read_off_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of less than a decade had one label or none, and sizes that lie close together one label over another."""
    drawn: list[Any] = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, _: drawn.append(self.figure))
    sizes = (64, 128, 256, *range(496, 524, 4), 1024)
    bench = Bench(replace(PLAN, dtypes=("float32",), sizes=sizes), {}, SimpleNamespace(say=print))  # type: ignore[arg-type]
    bench.products = {PLAN.sides[0]: [replace(at(one, 2e-9 * one**3 / 50).found, error=1e-7) for one in sizes]}
    figures.draw(tmp_path / "rates.png", bench)
    (axes,) = drawn[0].axes
    drawn[0].canvas.draw()
    low, high = axes.get_ylim()
    assert sum(low <= place <= high and bool(one.get_text()) for place, one in labels(axes.yaxis)) > 1
    named = [one for _, one in labels(axes.xaxis)]
    assert [one.get_text() for one in named] == ["64", "128", "256", "496", "1024"]
    ends = [one.get_window_extent() for one in named]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(ends))


def labels(axis: Any) -> list[tuple[float, Any]]:
    return list(zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True))


def test_too_long_for_one_process_is_fewer_samples_in_either_order() -> None:
    for order in (1, -1):
        ran = Found("float32", 8, error=1e-7, device="cpu", samples=[1.0], calls=[2], ceilings=[None])
        first, second = (ran, Found("float32", 8, missing="too long"))[::order]
        first.add(second)
        assert (first.samples, first.missing, first.error, first.device) == ([1.0], None, 1e-7, "cpu")


def test_samples_are_counted() -> None:
    """Each row's, where a process ended or found a product too long."""
    bench = Bench(replace(PLAN, starts=3, rounds=3), {}, SimpleNamespace(say=print))  # type: ignore[arg-type]
    bench.products[Side("numpy")] = [replace(at(size, 1e-3).found, error=0.0) for size in (16, 32)]
    table = tables.of_dtype(bench, "float32")
    assert table.title == "float32; medians of 9 samples" and "samples" not in table.columns
    short = bench.products[Side("numpy")][1]
    short.samples, short.calls, short.ceilings = short.samples[:6], short.calls[:6], short.ceilings[:6]
    table = tables.of_dtype(bench, "float32")
    assert table.title == "float32; medians of 6 to 9 samples"
    assert table.columns[-1] == "samples" and [row[-1] for row in table.rows] == ["9", "6"]
    for one in bench.products[Side("numpy")]:
        one.samples, one.calls, one.ceilings = one.samples[:1], one.calls[:1], one.ceilings[:1]
    assert tables.of_dtype(bench, "float32").title == "float32; medians of 1 sample"


def test_a_share_beyond_the_ceiling_is_named() -> None:
    bench = Bench(PLAN, {}, NOTHING)
    flop = 2 * 32**3
    found = [
        Found("float32", 32, error=0.0, samples=[flop / rate] * ROUNDS, calls=[1] * ROUNDS, ceilings=[1e12] * ROUNDS)
        for rate in (1.2e12, 0.9e12)
    ]
    bench.products = {Side("numpy"): found[:1], Side("torch"): found[1:]}
    said = dict(tables.summary(bench))["above it"]
    assert said.startswith(f"numpy {found[0].problem} 120 %: multiply-adds had less of the cores")
    assert "torch" not in said
    bench.products = {Side("torch"): found[1:]}
    assert "above it" not in dict(tables.summary(bench))


def test_on_a_busy_machine_no_share_is_kept() -> None:
    """stage=wmma keeps none either; here `best/share` was a metric all the same."""
    bench, flop = Bench(PLAN, {}, NOTHING), 2 * 32**3
    ran = Found("float32", 32, error=0.0, samples=[flop / 1.2e12] * 6, calls=[1] * 6, ceilings=[1e12] * 6)
    bench.products = {Side("numpy"): [ran]}
    alone = {one.name for one in tables.metrics(bench)}
    bench.others = "other processes are at work"
    key = "numpy/float32/32/share"
    assert alone - {one.name for one in tables.metrics(bench)} == {"best/share", key, f"{key}_low", f"{key}_high"}
    table, said = tables.of_dtype(bench, "float32"), dict(tables.summary(bench))
    assert table.rows[0][table.columns.index("of FMA")] == "-"
    assert "; uncertain, other processes are at work: no share is kept" in said["of FMA"] and "above it" not in said


@pytest.mark.wide
def test_others_on_the_cores_are_named(tmp_path: Path) -> None:
    """Two processes for each core, so that none has more than a third of it."""
    cores = len(os.sched_getaffinity(0))
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores)]
    try:
        words = ("stage.frameworks=[numpy]", "stage.dtypes=[float32]", "stage.placed=null")
        run = done(tmp_path, *QUICK, *words)
    finally:
        for one in others:
            one.kill()
            one.wait()
    had = read_json(run / "receipt.json")["cores_had"]
    assert len(had) == 3  # the probe twice, and the counts between
    assert min(had) < 0.95
    found = read_result(run)
    assert found is not None
    said = f"other processes are at work: they left {min(had):.0%} of {cores} cores; rates are lower than"
    assert any(one.startswith(said) for one in found.notes), found.notes
    assert not [one.name for one in found.metrics if "share" in one.name]


def test_an_operand_elsewhere_costs_a_copy_or_is_refused() -> None:
    away = own_matrices.Away()
    found = misplaced(own_matrices.Copying(away.held), away, Problem("float32", 32), 0, 3)
    assert (found.here, found.there, found.result_on, found.refused, found.fault) == ("cpu", "cpu:1", "cpu", None, None)
    assert min(found.in_place) < own_matrices.PRODUCT_S  # other processes may slow down any
    assert min(*found.as_written, *found.copied) >= own_matrices.PRODUCT_S
    strict = misplaced(own_matrices.Strict(away.held), away, Problem("float32", 32), 0, 3)
    assert (strict.refused, strict.as_written) == ("raised ValueError: operands on two devices", [])
    assert len(strict.copied) == len(strict.in_place) == 3
    full = misplaced(own_matrices.Full(away.held), away, Problem("float32", 32), 0, 3)
    assert (full.fault, full.here, full.in_place) == ("raised MemoryError: 4 GiB", "cpu", [])


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Bench]:
    """The stage's bench with another module in the place of NumPy's, after its products were timed in a process."""

    def measured(module: str) -> Bench:
        monkeypatch.setenv("PYTHONPATH", str(HERE))
        monkeypatch.setitem(matmul_bench.MODULES, "numpy", module)
        bench = Bench(PLAN, {}, SimpleNamespace(say=print))  # type: ignore[arg-type]
        bench.time(Side("numpy"))
        return bench

    return measured


def test_what_is_wrong_in_a_process_fails_the_run(planted: Callable[[str], Bench]) -> None:
    bench = planted("own_matrices")
    assert [one.found.dtype for _, one in bench.timed] == ["float32", "float32"]
    assert [one.partition(": its ")[0] for one in bench.faults()] == [
        f"not timed, because wrong: numpy, float64 {size}" for size in (16, 32)
    ]


def test_a_process_that_ends_is_named(planted: Callable[[str], Bench]) -> None:
    (said,) = planted("no_such_matrices").faults()
    assert said == "numpy: ended with exit status 1: ModuleNotFoundError: No module named 'no_such_matrices'"


def test_samples_of_several_processes_are_one_set() -> None:
    """What is wrong in one of them is wrong."""
    pairs = ((1.0, 2), (3.0, 4), (5.0, 6))
    one, other, wrong = (Found("float32", 8, samples=[s], calls=[n], ceilings=[1.0]) for s, n in pairs)
    one.add(other)
    assert (one.samples, one.calls, one.ceilings) == ([1, 3], [2, 4], [1.0, 1.0])
    wrong.lose_times("off")
    one.add(wrong)
    one.add(other)
    assert (one.fault, one.samples, one.calls, one.ceilings) == ("off", [], [], [])


REFUSED = {
    "stage.starts=0: should be greater than 0": {"starts": 0},
    "stage.rounds=0: should be greater than 0": {"rounds": 0},
    "stage.sizes=[]: name one at least": {"sizes": ()},
    "stage.sizes.1=0: should be greater than 0": {"sizes": (64, 0)},
    "stage.dtypes=[]: name one at least": {"dtypes": ()},
    "stage.dtypes=float8: no such choice": {"dtypes": ("float8",)},
    "stage.dtypes=[float32,float32]: float32 is named twice": {"dtypes": ("float32", "float32")},
    "stage.frameworks=theano: no such choice; choose from jax, numpy, tensorflow, torch": {"frameworks": ("theano",)},
    "stage.kernels=cpu_thread: no such choice (did you mean cpu_threads?)": {"kernels": ("cpu_thread",)},
    "stage.kernels=wgmma: runs on a GPU": {"kernels": ("wgmma",)},
    "stage.kernels=numpy: stage.frameworks has it too; leave one of them out": {"kernels": ("numpy",)},
    "stage.longest=0.0: should be greater than 0": {"longest": 0.0},
    "stage.cores=100000: this process may use ": {"cores": 100000},
}


@pytest.mark.parametrize(("said", "fields"), list(REFUSED.items()), ids=REFUSED)
def test_settings_that_make_no_sense_are_refused(said: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        build_as(Matmul, fields, "stage")
    assert str(error.value).startswith(said)


def test_sizes_beyond_memory_are_refused_before_they_are_allocated() -> None:
    large = build_as(Matmul, {"sizes": (64, 500_000)}, "stage")
    with pytest.raises(UserError) as error:
        large.check(NOTHING)
    said = str(error.value)
    assert said.startswith("stage.sizes=500000: three float64 matrices need 5587.9 GiB, ")
    assert said.endswith(" are free; use a smaller size")
    with pytest.raises(UserError, match=r"stage\.placed=500000: three float32 matrices need 2794\.0 GiB"):
        build_as(Matmul, {"placed": 500_000}, "stage").check(NOTHING)


def test_sizes_beyond_a_gpus_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And beyond device.memory_limit."""
    monkeypatch.setattr(matmul_stage, "gpu_free_bytes", lambda _index: 80 * 2**30)
    on_gpu: Any = SimpleNamespace(place=Place("gpu", 0))
    large = build_as(Matmul, {"sizes": (64, 10_000)}, "stage")
    for limit, refused_by in ((None, None), (2**30, "1.0 GiB of gpu:0 are free")):
        asked: Any = SimpleNamespace(device=SimpleNamespace(memory_limit_bytes=limit))
        if refused_by is None:
            large.rehearse(asked, on_gpu)
            continue
        with pytest.raises(UserError, match=f"stage.sizes=10000: three float64 matrices need 2.2 GiB; {refused_by}"):
            large.rehearse(asked, on_gpu)


def test_the_bench_counts_the_shares_that_agree() -> None:
    first = {"a/share": (0.5, 0.4, 0.6), "b/share": (0.5, 0.4, 0.6), "c/share": (0.5, 0.4, 0.6)}
    again = {"a/share": (0.55, 0.5, 0.7), "b/share": (0.65, 0.55, 0.7), "c/share": (0.7, 0.61, 0.8)}
    assert agreeing(first, again) == {"overlapping": pytest.approx(2 / 3), "inside": pytest.approx(1 / 3)}
    assert agreeing(first, {"a/share": (0.5, 0.4, 0.6)})["overlapping"] == pytest.approx(1 / 3)


def test_what_does_not_belong_or_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = build_as(Matmul, {}, "stage")
    for key, why in (("backend", "stage.frameworks names them"), ("precision", "stage.dtypes names them")):
        with pytest.raises(UserError, match=f"{key} with stage=matmul: {why}; leave it out"):
            matmul.check_keys(NOTHING, ["seed", "device", key])
    lacking = BACKENDS["jax"].packages[0]
    there = installed.is_installed
    monkeypatch.setattr(installed, "is_installed", lambda name: name != lacking and there(name))
    with pytest.raises(Impossible) as error:
        matmul.check(NOTHING)
    said = str(error.value)
    assert said.startswith("stage.frameworks=jax: jax is not installed; ")
    assert said.endswith("; or choose stage.frameworks=[numpy,torch,tensorflow]")


def sampled(run: Path) -> dict[tuple[str, str, str], list[dict[str, str]]]:
    """samples.csv: by framework, dtype and size, those of products."""
    samples: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    with (run / "artifacts/tables/samples.csv").open() as file:
        for row in csv.DictReader(file):
            if row["what"] == "product":
                samples.setdefault((row["by"], row["dtype"], row["size"]), []).append(row)
    return samples


def check_result(run: Path, names: tuple[str, ...], *, ceilings: bool) -> tuple[Result, dict[str, Metric]]:
    """Every product was right, timed and reported, with an interval; the numbers are those of the samples."""
    result = read_result(run)
    assert result is not None and result.failed is None
    metrics, samples = {metric.name: metric for metric in result.metrics}, sampled(run)
    assert {name for name, *_ in samples} == set(names)
    for (name, dtype, size), rows in samples.items():
        key, flop = f"{name}/{dtype}/{size}", 2 * int(size) ** 3
        times = [float(row["seconds"]) for row in rows]
        assert len(times) == ROUNDS
        assert metrics[f"{key}/rate"].value == pytest.approx(statistics.median(flop / each / 1e9 for each in times))
        assert metrics[f"{key}/rate_low"].value == pytest.approx(flop / max(times) / 1e9)
        assert metrics[f"{key}/rate_low"].value <= metrics[f"{key}/rate"].value <= metrics[f"{key}/rate_high"].value
        assert 0 <= metrics[f"{key}/error"].value <= Problem(dtype, int(size)).rounding
        if ceilings and dtype in ("float32", "float64") and not any("at work" in note for note in result.notes):
            shares = [flop / float(row["seconds"]) / float(row["ceiling_flop_per_s"]) for row in rows]
            assert metrics[f"{key}/share"].value == pytest.approx(statistics.median(shares))
        else:
            assert f"{key}/share" not in metrics
    assert (run / "artifacts/figures/rates.png").stat().st_size > 5000
    return result, metrics


@pytest.mark.wide
def test_numpy_without_a_compiler(tmp_path: Path) -> None:
    """No ceiling, and the kernel is named with what it needs."""
    words = ("stage.frameworks=[numpy]", "stage.kernels=[cpu_naive]", "stage.placed=32")
    run = done(tmp_path, *QUICK, *words, CXX="no-such-compiler")
    result, metrics = check_result(run, ("numpy",), ceilings=False)
    (note,) = [one for one in result.notes if "at work" not in one]  # other tests
    assert note.startswith("no ceiling is measured: it needs a C++ compiler (CXX=no-such-compiler is not one")
    table = dict(result.table)
    assert table["numpy bfloat16"] == "not run: has no bfloat16"
    assert table["cpu_naive float32"].startswith("not run: needs a C++ compiler")
    assert table["numpy, misplaced"] == "not measured: NumPy knows one device"
    assert table["a GPU wins"] == "not measured: the device is the CPU"
    assert [one.title.partition(";")[0] for one in result.tables[:3]] == ["float16", "float32", "float64"]
    assert [row[:2] for row in result.tables[1].rows] == [("16", "numpy"), ("48", "numpy")]
    assert "numpy/memory/peak" in metrics
    receipt = json.loads((run / "receipt.json").read_text())
    seen = {(one["name"], one["dtype"], one["size"]): one.get("seen_dtype") for one in receipt["products"]}
    assert seen["numpy", "float16", 48] == "float16" and seen["numpy", "bfloat16", 48] is None
    code = json.loads((run / "code.json").read_text())
    assert {"pipeline.backends.shared.matrices_numpy", "pipeline.stages.matmul.process"} <= code.keys()
    assert "pipeline.backends.torch.matrices" not in code


def test_what_looks_at_memory_is_not_counted(tmp_path: Path) -> None:
    """Where no module has been compiled to bytecode, importing psutil frees megabytes between two looks."""
    job: dict[str, Any] = {"what": "placed", "module": "pipeline.backends.shared.matrices_numpy", "place": "cpu"}
    job |= {"limit": None, "dtype": "float32", "size": 1024, "seed": 0, "rounds": 1, "kernel": None}
    (tmp_path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = (sys.executable, "-m", "pipeline.stages.matmul.process", str(tmp_path))
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")})
    memory = read_json(tmp_path / "found.json")["memory"]
    added = memory["with_operands"] - memory["before"]
    assert added == pytest.approx(memory["matrices"] * 2 / 3, rel=0.05)


@pytest.mark.wide
def test_every_framework_multiplies(tmp_path: Path) -> None:
    """As it ships but for the sizes; with a kernel of stage=wmma."""
    run = done(tmp_path, *QUICK, "stage.kernels=[cpu_threads]", "stage.placed=1024", "stage.longest=10")
    result, metrics = check_result(run, (*FRAMEWORKS, "cpu_threads"), ceilings=True)
    table = dict(result.table)
    for name in FRAMEWORKS[1:]:
        assert metrics[f"{name}/bfloat16/48/rate"].value > 0
    assert table["cpu_threads float16"] == "not run: a kernel takes float32 here"
    matrix = 4 * 1024**2
    for name in FRAMEWORKS:
        assert 1.8 * matrix < metrics[f"{name}/memory/operands"].value < 2.7 * matrix
    assert table["jax, misplaced"].startswith("as written it raised ValueError: ")
    assert table["tensorflow, misplaced"] == "as written it copies by itself; the result is on cpu"
    assert metrics["tensorflow/misplaced/as_written"].value > 0 and metrics["jax/misplaced/copied"].value > 0
    assert "torch/misplaced/in_place" not in metrics


def test_zero_rounds_are_one_message(tmp_path: Path) -> None:
    assert refused(tmp_path, "stage=matmul", "stage.rounds=0") == "stage.rounds=0: should be greater than 0"


@pytest.mark.wide
def test_a_gpu_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    result = pipeline(tmp_path, *QUICK, "stage.frameworks=[numpy]", "device=gpu")
    assert result.returncode == 2 and "no NVIDIA GPU found" in result.stderr


def test_a_kernel_that_computes_once_is_not_timed(tmp_path: Path) -> None:
    """Its buffer still has the right product of the launch before, but for what is done about it."""
    source, own = tmp_path / "once.cpp", HERE / "own_kernel.cpp"
    once = "float *d, int) {\n    static float *known;\n    if (d == known) return;\n    known = d;"
    source.write_text(own.read_text(encoding="utf-8").replace("float *d, int) {", once), encoding="utf-8")
    timing = Timing(kernel.Matrices(str(source), 1), "cpu", lambda _dtype: None, seed=0, longest=10.0)
    timing.verify(["float32"], [16])
    (found,) = timing.found
    assert found.fault is not None and found.fault.startswith("its result, when it was timed")
    assert found.samples == []


SHARE = """
from pipeline.backends.keras import matrices_jax
from pipeline.machine.device import Gpu

matrices_jax.gpus = lambda: (Gpu(0, "NVIDIA H100", 80 * 10**9, (9, 0)),)
matrices_jax.Matrices = str
matrices_jax.matrices("gpu:0", 8 * 10**9)
from jaxlib.xla_client import generate_pjrt_gpu_plugin_options
print(generate_pjrt_gpu_plugin_options()["memory_fraction"])
"""


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_a_memory_limit_holds_on_jax_whatever_its_variables_say(name: str) -> None:
    """JAX refuses to start with both of the variable's names."""
    ended = subprocess.run(
        [sys.executable, "-c", SHARE], env={**environment(), name: "0.5"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) == 0.1
