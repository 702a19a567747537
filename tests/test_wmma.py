"""stage=wmma: what a user gets, kernels of the user's among ours, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import COMMAND, LONG, done, environment, pipeline, runs, status, write_files
from hypothesis import given
from hypothesis import strategies as st
from in_backend import experiment
from matplotlib.figure import Figure
from rich.console import Console

from pipeline.errors import Impossible, UserError
from pipeline.kernels.cpu.ceilings import Ceilings
from pipeline.kernels.cpu.cpu_naive import CpuNaive
from pipeline.kernels.cpu.numpy import Numpy
from pipeline.kernels.cpu.of_file import Source as CppSource
from pipeline.kernels.cuda.naive import Naive
from pipeline.kernels.gemm import Gemm, operands, with_margins
from pipeline.kernels.timing import Times
from pipeline.kernels.torch.cublas import Cublas
from pipeline.kernels.verify import Verdict, verify
from pipeline.machine.device import Device, Place, gpus
from pipeline.report.canvas import canvas, log_labels
from pipeline.report.table import digits, show_table
from pipeline.runs.code.code_hash import hash_of
from pipeline.runs.receipt import software
from pipeline.runs.result import read_result
from pipeline.spec import build_as
from pipeline.stages.wmma import figures, padding, tables
from pipeline.stages.wmma import found as found_module
from pipeline.stages.wmma.bench import Bench
from pipeline.stages.wmma.padding import STEPS, Around, metrics, next_multiple
from pipeline.stages.wmma.padding import tables as shown
from pipeline.stages.wmma.scales import LEAST, check_scales
from pipeline.stages.wmma.stage import Wmma

HERE = Path(__file__).parent
NOTHING: Any = SimpleNamespace(seed=0, device=Device(name="cpu"), place=Place("cpu"))  # what the stage asks for; no GPU
QUICK = ("stage=wmma", "tracking=none", "stage.seconds=0.02", "stage.rounds=3")
LADDER = ("cpu_naive", "cpu_order", "cpu_blocked", "cpu_vector", "cpu_packed", "cpu_threads")
GEMM = (HERE / "own_kernel.cpp").read_text()
# What goes wrong in a kernel of a user's, and what is said of it.
FAULTS = {
    "nan": (
        "beta != 0 ? beta * c[i + j * ldc] : 0",
        "beta * c[i + j * ldc]",
        "NaN in C with beta 0, at M=37, N=53, K=71, fp32",
    ),
    "short": ("p < k", "p < k - (k > 70)", "elements are wrong: D[0,0] = "),
    "beside": ("float sum = 0;", "float sum = 0; if (ldc > m) d[m + j * ldc] = 0;", "writes beside D: 53 numbers"),
    "crash": ("float sum = 0;", "float sum = *(const volatile float *)(4096 * i);", "crashed (SIGSEGV)"),
    "later": ("float sum = 0;", "float sum = (m == 21);", "the size that is timed, at M=N=K=21, fp32"),
    "exits": ("float sum = 0;", "float sum = 0; _exit(3);", "crashed (exit status 3)"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder: a kernel of each kind."""
    made = tmp_path_factory.mktemp("wmma")
    shutil.copyfile(HERE / "own_kernels.py", made / "own_kernels.py")
    broken = {f"{name}.cpp": "#include <unistd.h>\n" + GEMM.replace(*change[:2]) for name, change in FAULTS.items()}
    write_files(made, {"mine.cpp": GEMM, **broken})
    return made


@pytest.fixture(scope="module")
def own(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables by which the user's module is found, and a cache of this test's."""
    return {
        "PIPELINE_MODULES": "own_kernels",
        "PYTHONPATH": str(folder),
        "PIPELINE_CACHE": str(tmp_path_factory.mktemp("cache")),
    }


@pytest.fixture(scope="module")
def bench(folder: Path, own: dict[str, str]) -> Path:
    """Every kernel of ours and two of the user's."""
    sizes = "stage.sizes=[48,[70,33,129]]"
    kernels = f"stage.kernels=[numpy,{','.join(LADDER)},mine.cpp,own_kernels.Einsum]"
    return done(folder, *QUICK, sizes, kernels, "stage.threads=2", **own)


def test_every_kernel_is_verified_and_timed(bench: Path) -> None:
    result = read_result(bench)
    assert result is not None
    metrics = {metric.name: metric for metric in result.metrics}
    names = ("numpy", *LADDER, "mine", "einsum")
    for size in ("48x48x48", "70x33x129"):
        for name in names:
            assert metrics[f"{size}/{name}/sustained"].value > 0
            assert 0 < metrics[f"{size}/{name}/relative_error"].value < 1e-5
        shares = [metrics.get(f"{size}/{name}/share") for name in ("numpy", "cpu_packed")]
        if "best/share" not in metrics:  # other tests are at work
            assert shares == [None, None]
            continue
        rates = [metrics[f"{size}/{name}/sustained"].value for name in ("numpy", "cpu_packed")]
        assert [one.value for one in shares if one] == [1, pytest.approx(rates[1] / rates[0])]
    assert metrics["70x33x129/intensity"].value == 2 * 70 * 33 * 129 / (4 * (70 * 129 + 129 * 33 + 70 * 33))
    assert {metrics[f"verified/{name}"].value for name in names} == {55}  # classes, 128 and two sizes
    declared = metrics["48x48x48/numpy/burst"]
    assert (declared.unit, declared.kind, declared.direction) == ("GFLOP/s", "time", "max")
    assert (metrics["48x48x48/numpy/relative_error"].kind, metrics["ceiling/fma"].kind) == ("result", "time")
    assert [row[0] for row in result.tables[0].rows] == list(names)
    assert result.title == "wmma-fp32"
    for figure in ("roofline", "rate_against_size", "ladder"):
        assert (bench / f"artifacts/figures/{figure}.png").stat().st_size > 5000
    with (bench / "artifacts/tables/samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(names) * 3 and all(float(row["burst_s"]) > 0 for row in rows)


def test_the_receipt_says_how_each_kernel_was_made(bench: Path) -> None:
    receipt = json.loads((bench / "receipt.json").read_text())
    naive, numpy = receipt["kernels"]["cpu_naive"], receipt["kernels"]["numpy"]
    assert "-O3 -march=native" in naive["flags"] and naive["compiler"] and len(naive["source_sha256"]) == 64
    assert (naive["threads"], numpy["internal_api"]) == (1, "openblas")
    assert receipt["kernels"]["cpu_threads"]["threads"] == 2 >= numpy["threads"]
    assert receipt["kernels"]["einsum"] == {"path": "optimal"}
    assert receipt["precision"]["effective"] == "fp32"
    code = json.loads((bench / "code.json").read_text())
    assert hash_of(code) == receipt["code_sha256"]
    assert {"own_kernels", "pipeline.kernels.cpu.cpu_packed", "pipeline.kernels.cpu.of_file"} <= code.keys()


@pytest.mark.wide
def test_without_a_dtype_each_kernel_is_verified_in_one_that_it_takes(folder: Path, own: dict[str, str]) -> None:
    """The bare command: fp32 is timed, Tensor Core kernels are verified in fp16. A word of the user's is found in the
    folder that --config-dir adds."""
    write_files(folder, {"conf/kernel/mine.yaml": "_target_: pipeline.kernels.cpu.of_file.Source\nfile: mine.cpp\n"})
    words = ("stage.kernels=[numpy,mine,naive,tiled]", "stage.sizes=[32]", "stage.architectures=[]")
    made = done(folder, *QUICK, *words, "--config-dir", "conf", **own)
    found = read_result(made)
    assert found is not None
    assert [row[0] for row in found.tables[0].rows] == ["numpy", "mine"]
    rows = dict(found.table)
    if gpus():
        return
    for name in ("naive", "tiled"):
        assert re.fullmatch(r"right on \d+ problems in fp16; not timed: needs an NVIDIA GPU", rows[name])


@pytest.mark.wide
def test_cells_have_the_kernels_of_the_users_words(folder: Path, own: dict[str, str]) -> None:
    """A cell is composed by the command that starts it; its process knows nothing of --config-dir."""
    write_files(folder, {"conf/kernel/mine.yaml": "_target_: pipeline.kernels.cpu.of_file.Source\nfile: mine.cpp\n"})
    words = ("stage.kernels=[mine]", "stage.sizes=[32]", "stage.architectures=[]", "seed=0,1")
    grid = pipeline(folder, "-m", *QUICK, *words, "--config-dir", "conf", **own)
    assert grid.returncode == 0, grid.stdout + grid.stderr
    assert "best/sustained (GFLOP/s) over the grid" in grid.stdout  # without a yardstick


@pytest.mark.skipif(bool(gpus()), reason="they are timed")
@pytest.mark.wide
def test_a_grid_of_what_only_a_gpu_can_time_says_what_was_found(folder: Path, own: dict[str, str]) -> None:
    words = ("stage.kernels=[naive],[tiled]", "stage.dtype=fp16", "stage.sizes=[32,64]", "stage.architectures=[]")
    grid = pipeline(folder, "-m", *QUICK, *words, **own)
    assert grid.returncode == 0, grid.stdout + grid.stderr
    assert "right/problems over the grid" in grid.stdout
    for run in runs(folder)[-2:]:
        found = read_result(run)
        assert found is not None and found.tables == ()
        right = {one.name: one.value for one in found.metrics}["right/problems"]
        assert right > 50
        assert dict(found.table)["verified"] == f"1 kernel, {right:.0f} problems, each run twice"


@pytest.mark.wide
def test_a_word_that_no_folder_has_is_refused(folder: Path, own: dict[str, str]) -> None:
    write_files(folder, {"conf/kernel/torn.yaml": "file: mine.cpp\n"})
    for word, said in (
        ("nobody", "stage.kernels=nobody: no such choice"),
        ("thorn", "stage.kernels=thorn: no such choice (did you mean torn?); choose from"),
        ("torn", "needs _target_: <module>.<class>"),
    ):
        refused = pipeline(folder, *QUICK, f"stage.kernels=[{word}]", "--config-dir", "conf", **own)
        assert refused.returncode == 2 and said in refused.stderr and "Traceback" not in refused.stderr


def seen(samples: Mapping[str, tuple[float, ...]], had: float) -> Bench:
    """A bench with these seconds of each kernel at one size, on so much of the cores."""
    stage = build_as(Wmma, {"kernels": tuple(samples), "sizes": (64,), "threads": 2}, "stage")
    bench = Bench(stage.plan(0), None)  # type: ignore[arg-type]  # it has nothing to say
    bench.verdicts = {name: Verdict(1, 0.0, 0.0) for name in samples}
    (gemm,) = bench.plan.problems
    bench.times = {gemm: {name: Times(1, list(each), list(each)) for name, each in samples.items()}}
    bench.errors = {(gemm, name): Verdict(1, 0.0, 0.0) for name in samples}
    bench.facts = {name: {} for name in samples}
    bench.cores_had.shares = [1.0, had]
    return bench


def test_a_rate_is_that_of_the_median_time_in_the_table_as_in_the_metrics() -> None:
    """Of an even number of samples the median of rates is another number: 0.75 in place of 0.667."""
    bench = seen({"numpy": (1.0, 1.0, 2.0, 2.0)}, 1.0)
    (gemm,), (table,) = bench.plan.problems, tables.timed(bench)
    metrics = {one.name: one.value for one in tables.metrics(bench)}
    for kind in ("burst", "sustained"):
        assert metrics[f"64x64x64/numpy/{kind}"] == pytest.approx(gemm.flop / 1.5e9)
        assert table.rows[0][table.columns.index(kind)] == digits(gemm.flop / 1.5e9)


def test_the_intensity_of_a_matrix_and_a_vector_is_not_written_as_zero() -> None:
    """Half a FLOP for each byte was 0 FLOP/byte."""
    bench = seen({"numpy": (1.0,)}, 1.0)
    ((gemm, times),) = bench.times.items()
    flat = replace(gemm, m=1)
    bench.plan, bench.times = replace(bench.plan, problems=(flat,)), {flat: times}
    bench.errors = {(flat, "numpy"): Verdict(1, 0.0, 0.0)}
    (table,) = tables.timed(bench)
    assert table.title.endswith(", 0.48 FLOP/byte; GFLOP/s")  # 2 · 64² over 4 · (64 + 64² + 64)


def test_kernels_on_fewer_threads_are_named() -> None:
    """Their share of the peak is of all threads' peak."""
    bench = seen({"cpu_naive": (1.0,), "cpu_packed": (1.0,), "cpu_threads": (1.0,)}, 1.0)
    assert dict(tables.summary(bench))["threads"] == "2"
    for name, threads in (("cpu_naive", 1), ("cpu_packed", 1), ("cpu_threads", 2)):
        bench.facts[name] = {"threads": threads}
    assert dict(tables.summary(bench))["threads"] == "2; 1 for cpu_naive, cpu_packed"


@pytest.mark.parametrize("size", [(1, 1, 400_000), (1, 400_000, 1), (70, 33, 129)])
def test_the_memory_that_is_foreseen_has_the_margins(size: tuple[int, int, int]) -> None:
    """Of a long K with few rows and columns they are most of it."""
    m, n, k = size
    gemm = Gemm(m=m, n=n, k=k)
    made = operands(gemm, 0)
    assert gemm.memory == sum(with_margins(one).nbytes for one in (*made.abc, made.d))
    assert gemm.memory_of_d == with_margins(made.room()).nbytes


@pytest.fixture
def free_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's BLAS chooses its code by the processor."""
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)


@pytest.mark.usefixtures("free_blas")
def test_on_a_busy_machine_no_share_is_the_headline() -> None:
    """The yardstick suffers most where others are at work, so that shares flatter."""
    samples = {"numpy": (8.0, 9.0, 80.0), "cpu_packed": (4.0, 4.0, 5.0)}
    alone, busy = (seen(samples, had) for had in (0.97, 0.33))
    kept = {metric.name for metric in tables.metrics(alone)} - {metric.name for metric in tables.metrics(busy)}
    assert kept == {"best/share", "64x64x64/numpy/share", "64x64x64/cpu_packed/share"}
    assert "uncertain" not in dict(tables.summary(alone))["fastest beside numpy"]
    assert (
        "uncertain, other processes are at work: no share of it is kept"
        in dict(tables.summary(busy))["fastest beside numpy"]
    )
    assert "they left 33% of 2 cores" in str(busy.others)
    for bench, shares in ((alone, ["100.0 %", "225.0 %"]), (busy, ["-", "-"])):
        (table,) = tables.timed(bench)
        assert [row[table.columns.index("of numpy")] for row in table.rows] == shares


def test_more_threads_than_cores_are_said_and_are_no_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {"numpy": (8.0, 8.0, 8.0)}
    monkeypatch.setattr(found_module, "allowed_cores", lambda: [0, 1])
    assert seen(samples, 1.0).crowded is None
    monkeypatch.setattr(found_module, "allowed_cores", lambda: [5])
    said = "stage.threads=2: more than the 1 core that this process may use; they take turns"
    assert seen(samples, 1.0).crowded == said


@pytest.mark.usefixtures("free_blas")
def test_a_gpus_share_of_numpy_on_a_busy_machine_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cuBLAS is not there, NumPy is the yardstick of a GPU's kernels too."""
    monkeypatch.setattr(Naive, "missing", lambda _: None)
    alone, busy = (seen({"numpy": (8.0, 8.0, 8.0), "naive": (4.0, 4.0, 4.0)}, had) for had in (0.97, 0.33))
    for one in (alone, busy):
        one.facts["naive"] = {}
    assert "best/share" in {one.name for one in tables.metrics(alone)}
    assert not [one.name for one in tables.metrics(busy) if one.name.endswith("/share")]


@pytest.mark.usefixtures("free_blas")
def test_a_share_of_a_blas_that_is_held_back_is_no_headline(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had half of its rate with the code of an older processor, so that shares were 1.8."""
    samples = {"numpy": (8.0, 8.0, 8.0), "cpu_packed": (4.0, 4.0, 4.0)}
    free = seen(samples, 1.0)
    assert free.slowed_yardstick is None and "best/share" in {one.name for one in tables.metrics(free)}
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    held = seen(samples, 1.0)
    assert str(held.slowed_yardstick).startswith(
        "OPENBLAS_CORETYPE=Haswell: numpy's BLAS computes as for that processor"
    )
    assert "best/share" not in {one.name for one in tables.metrics(held)}
    rows = dict(tables.summary(held))
    assert "uncertain, OPENBLAS_CORETYPE is set: no share of it is kept" in rows["fastest beside numpy"]
    assert "above numpy" not in rows


@pytest.mark.parametrize(
    ("yardstick", "fields", "said"),
    [
        ("numpy", {}, None),
        ("numpy", {"alpha": 2.0}, "makes further passes over D for alpha and beta"),
        ("numpy", {"beta": 1.0}, "makes further passes over D for alpha and beta"),
        ("onednn", {"dtype": "bf16"}, "rounds A and B from float32 to bfloat16"),
    ],
)
def test_what_the_yardstick_does_beside_the_product_is_said(
    yardstick: str, fields: dict[str, Any], said: str | None
) -> None:
    """Others do it in the same pass, so that shares of it are higher."""
    stage = build_as(Wmma, {"kernels": (yardstick, "tiled"), "sizes": (64,), "dtype": "fp32"} | fields, "stage")
    bench = Bench(stage.plan(0), None)  # type: ignore[arg-type]  # it has nothing to say
    (gemm,) = bench.plan.problems
    bench.absent = dict.fromkeys((yardstick, "tiled"), "timed elsewhere")
    bench.times = {gemm: {yardstick: Times(1, [1.0], [1.0])}}
    assert bench.burdened_yardstick is None  # nothing is a share of it
    bench.times[gemm]["tiled"] = Times(1, [1.0], [1.0])
    beside = "in the time that is measured: shares of it are higher than of a product alone"
    assert bench.burdened_yardstick == (None if said is None else f"{yardstick} {said}, {beside}")


@pytest.mark.usefixtures("free_blas")
def test_shares_above_the_yardstick_stand_beside_its_spread() -> None:
    above = seen({"numpy": (8.0, 9.0, 80.0), "cpu_packed": (4.0, 4.0, 5.0), "cpu_vector": (8.0, 8.9, 9.5)}, 1.0)
    said = dict(tables.summary(above))["above numpy"]
    assert said.startswith("cpu_packed at 64 fp32, column-major, 225.0 % of a median between ")
    assert "cpu_vector" not in said  # its slowest sample is no faster
    assert "above numpy" not in dict(tables.summary(seen({"numpy": (1.0,), "cpu_packed": (2.0,)}, 1.0)))


@pytest.mark.wide
def test_a_source_counts_in_the_codes_hash(folder: Path, own: dict[str, str]) -> None:
    few = ("stage.kernels=[cpu_order,mine.cpp]", "stage.sizes=[20]")
    before = json.loads((done(folder, *QUICK, *few, **own) / "code.json").read_text())
    (folder / "mine.cpp").write_text(GEMM.replace("float sum", "double sum"))
    after = json.loads((done(folder, *QUICK, *few, **own) / "code.json").read_text())
    (folder / "mine.cpp").write_text(GEMM)
    assert {name for name in before if before[name] != after[name]} == {"pipeline.kernels.cpu.of_file"}


def test_a_kernel_that_is_wrong_is_never_timed(folder: Path, own: dict[str, str]) -> None:
    before = set(runs(folder))
    kernels = f"stage.kernels=[numpy,{','.join(f'{name}.cpp' for name in FAULTS)}]"
    result = pipeline(folder, *QUICK, kernels, "stage.sizes=[20,21]", **own)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    (made,) = set(runs(folder)) - before
    assert status(made).state == "FAILED"
    found = read_result(made)
    assert found is not None
    assert [row[0] for row in found.tables[0].rows] == ["numpy"]
    rows = dict(found.table)
    for name, (_, _, said) in FAULTS.items():
        assert rows[name].startswith("WRONG, so it was not timed: ") and said in rows[name]
    first, *others = FAULTS  # of twelve kernels all that is wrong filled a screen, a second time
    said = f"not timed, because wrong: {first}: {rows[first].partition(': ')[2]}"
    assert found.failed == f"{said}; also {', '.join(others)} (the table says what is wrong with each)"


def test_a_kernel_that_does_not_compile_is_refused(folder: Path, own: dict[str, str]) -> None:
    """With the compiler's own lines, before the run begins."""
    write_files(
        folder, {"syntax.cpp": GEMM.replace("sum = 0;", "sum = 0"), "name.cpp": GEMM.replace("gemm", "product")}
    )
    few = (*QUICK, "stage.sizes=[20]")
    result = pipeline(folder, *few, "stage.kernels=[syntax.cpp]", **own)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    *lines, last = result.stderr.splitlines()
    assert any(line.startswith("syntax.cpp:7:") for line in lines)
    assert "stage=wmma" not in last and last.startswith("error: syntax.cpp: does not compile (")
    nameless = build_as(Wmma, {"kernels": (str(folder / "name.cpp"),)}, "stage")
    with pytest.raises(UserError, match='name: has no function gemm; declare it extern "C"'):
        nameless.rehearse(NOTHING, NOTHING)


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the run begins, where a kernel is compiled: it was each kernel's fault, and Triton's traceback."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "file"))
    for name in ("cpu_naive", "naive", "triton"):
        with pytest.raises(UserError) as error:
            build_as(Wmma, {"kernels": (name,)}, "stage").rehearse(NOTHING, NOTHING)
        assert str(error.value) == (
            f"cache folder {tmp_path / 'file' / 'kernels'}: cannot write: Not a directory; "
            "name another with PIPELINE_CACHE"
        )
    build_as(Wmma, {"kernels": ("numpy",)}, "stage").rehearse(NOTHING, NOTHING)  # nothing is compiled


@pytest.mark.wide
def test_a_cache_that_has_all_may_be_read_only(tmp_path: Path) -> None:
    """As in an image of a container: what is compiled lies there, and nothing has to be written."""
    cache = tmp_path / "cache"
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    prefix = ["unshare", "-rm", "sh", "-c", mount, str(cache)]
    words = ("stage=wmma", "stage.kernels=[numpy,cpu_naive]", "stage.sizes=[16]", "stage.seconds=0.01", "tracking=none")
    done(tmp_path, *words, PIPELINE_CACHE=str(cache))
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("no user namespace with mounts here")
    again = subprocess.run(
        [*prefix, *COMMAND, *words],
        cwd=tmp_path,
        env=environment(PIPELINE_CACHE=str(cache)),
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert [status(run).state for run in runs(tmp_path)] == ["FINISHED", "FINISHED"]


@pytest.mark.wide
def test_without_a_compiler(folder: Path, own: dict[str, str]) -> None:
    """Of all kernels those that need none."""
    made = done(folder, *QUICK, "stage.sizes=[20]", **own | {"CXX": "no-such-compiler"})
    found = read_result(made)
    assert found is not None
    assert dict(found.table)["cpu_order"].startswith("not run: needs a C++ compiler")
    assert [row[0] for row in found.tables[0].rows] == ["numpy"]


REFUSED = {
    "stage.sizes: 0: a size is N or [M, N, K], whole numbers, 1 or more": {"sizes": (64, 0)},
    "stage.sizes: [1, 2]: a size is N or": {"sizes": ((1, 2),)},
    "stage.sizes: true: a size is N or": {"sizes": (True,)},
    "stage.sizes=[]: name one at least": {"sizes": ()},
    "stage.sizes=[128, 128]: 128 is given twice; leave one out, or write stage.sizes=[[128, 128, 128]] for a single "
    "product of these M, N and K": {"sizes": (128, 128)},
    "stage.sizes=[64, 32, 64]: 64 is given twice; leave one out, or write stage.sizes=[[64, 32, 64]] for": {
        "sizes": (64, 32, 64)
    },
    "stage.sizes=[[1, 2, 3], 4, 5, [1, 2, 3]]: [1, 2, 3] is given twice; leave one out, or write": {
        "sizes": ((1, 2, 3), 4, 5, (1, 2, 3))
    },
    "stage.kernels=[]: name one at least": {"kernels": ()},
    "stage.kernels=none.cpp: no such file": {"kernels": ("none.cpp",)},
    "stage.kernels: 3: name a kernel, as numpy, my/fast.cpp or mine.Fast": {"kernels": (3,)},
    "stage.dtype=fp8: no such choice": {"dtype": "fp8"},
    "stage.order='diagonal': should be 'column' or 'row'": {"order": "diagonal"},
    "stage.pad=[1]: give 3 values": {"pad": (1,)},
    "stage.pad=[1, 2, 3, 4]: should have 3 values at most, not 4": {"pad": (1, 2, 3, 4)},
    "stage.pad.1=-1: should be greater than or equal to 0": {"pad": (0, -1, 0)},
    "stage.alpha=0.5 with stage.dtype=int8: needs a whole number": {"dtype": "int8", "alpha": 0.5},
    "stage.alpha=3e+09: kernels take numbers up to 2.14748e+09": {"dtype": "int8", "alpha": 3e9},
    "stage.beta=-1e+39: kernels take numbers up to 3.40282e+38": {"dtype": "fp16", "beta": -1e39},
    "stage.threads=0: should be greater than 0": {"threads": 0},
    "stage.threads=100000: should be less than or equal to 1024": {"threads": 100000},
    "stage.around=8: should be greater than or equal to 64": {"around": 8},
}


@pytest.mark.parametrize(("said", "fields"), list(REFUSED.items()), ids=REFUSED)
def test_settings_that_make_no_sense_are_refused(said: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        build_as(Wmma, fields, "stage")
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"alpha": 1e38}, "alpha=1e+38: D would leave the range of float32; choose up to 1.66e+35 with K=1024"),
        ({"alpha": -1e38}, "alpha=-1e+38: D would leave the range of float32; choose up to 1.66e+35 with K=1024"),
        ({"alpha": 1e-44}, "alpha=1e-44: D would have subnormal numbers of float32; choose 0, or 1e-23 and more"),
        (
            {"alpha": 1e37, "sizes": (1,)},
            "alpha=1e+37: D would leave the range of float32; choose up to 1.32e+36 with K=128",
        ),
        ({"beta": 2e9, "dtype": "int8"}, "beta=2e+09: D would leave the range of int32; choose up to 8.38e+06"),
        ({"beta": 1e-44}, "beta=1e-44: D would have subnormal numbers of float32; choose 0, or 1e-23 and more"),
        (
            {"alpha": 2e9, "dtype": "int8"},
            "alpha=2e+09: D would leave the range of int32; choose up to 767 with K=1024",
        ),
    ],
)
def test_scales_beyond_the_range_of_d_are_refused(fields: dict[str, Any], said: str) -> None:
    """Every kernel was called wrong, and the setting was."""
    with pytest.raises(UserError) as error:
        build_as(Wmma, {"kernels": ("numpy", "naive"), "sizes": (256, 1024)} | fields, "stage").check(NOTHING)
    assert str(error.value) == f"stage.{said}"


@pytest.mark.parametrize(("alpha", "beta"), [(LEAST, 0.0), (1.66e35, 1.7e38), (0.0, LEAST)])
@pytest.mark.parametrize("k", [1, 1024])
def test_scales_within_the_range_are_right(alpha: float, beta: float, k: int) -> None:
    """At the bounds themselves, by NumPy's product and a plain loop."""
    gemm = Gemm(m=96, n=96, k=k, alpha=alpha, beta=beta)
    check_scales([gemm])
    for kernel in (Numpy(), CpuNaive()):
        found = verify(kernel, [("sizes", gemm, "uniform", False)], partial(kernel.prepare, threads=1), seed=0)
        assert found.fault is None


@pytest.mark.parametrize("k", [1, 64, 1024, 200_000])
def test_whole_scales_within_the_range_are_right(k: int) -> None:
    """At the bound, which grows with the root of K alone."""
    gemm = Gemm(m=16, n=16, k=k, dtype="int8", beta=8e6)
    bound = 2**30 / (8 * 128**2 / 3 * k**0.5)
    largest = replace(gemm, alpha=float(int(bound * 0.99)))
    check_scales([largest])
    found = verify(CpuNaive(), [("sizes", largest, "uniform", False)], partial(CpuNaive().prepare, threads=1), seed=0)
    assert found.fault is None
    with pytest.raises(UserError, match=r"^stage\.alpha="):
        check_scales([replace(gemm, alpha=float(math.ceil(bound)))])


def test_what_this_machine_or_a_kernel_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def message(keys: Sequence[str] = (), **fields: object) -> str:
        stage = build_as(Wmma, fields, "stage")
        with pytest.raises(UserError) as error:  # noqa: PT012
            stage.check(NOTHING)
            stage.check_keys(NOTHING, keys)
        return str(error.value)

    large = message(sizes=(900000,))
    assert large.startswith("stage.sizes=[[900000,900000,900000]]: needs ") and large.endswith("; use smaller sizes")
    assert message(around=100000).startswith("stage.around=100000: needs ")
    said = "stage.kernels=cpu_order: takes fp32, not bf16 (256 bf16, column-major)"
    assert message(kernels=("cpu_naive", "cpu_order"), dtype="bf16") == said
    with pytest.raises(Impossible, match="takes fp32, not bf16"):  # so that the other cells of a grid run
        build_as(Wmma, {"kernels": ("numpy",), "dtype": "bf16"}, "stage").check(NOTHING)
    assert message(("precision",)) == "precision with stage=wmma: stage.dtype (fp32) says it; leave it out"
    said = "device.placement_log with stage=wmma: of a device the kernels follow its name alone; leave it out"
    assert message(("device.name", "device", "device.placement_log")) == said
    assert message(("model",)) == "model with stage=wmma: nothing is trained here; leave it out"
    several = ("model", "precision", "optimizer.momentum", "device.split")
    assert message(several) == (
        "model, optimizer.momentum with stage=wmma: nothing is trained here; precision: stage.dtype (fp32) says it; "
        "device.split: of a device the kernels follow its name alone; leave them out"
    )
    monkeypatch.setattr(Cublas, "missing", lambda _: "an NVIDIA GPU")
    said = message(kernels=("cublas",))
    assert said.startswith("stage.kernels=[cublas]: no kernel runs here: needs an NVIDIA GPU; cpu_")
    assert "numpy" in said.rpartition("; ")[2]
    assert said.endswith(" run here")
    assert message(kernels=("cublas",), dtype="fp16").endswith("; cpu_naive runs here")
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = message(kernels=("cpu_order",))
    assert said.startswith("stage.kernels=cpu_order: needs a C++ compiler (CXX=no-such-compiler is not one;")
    assert message(dtype="int8").startswith("stage=wmma: no kernel runs here: needs a C++ compiler")


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["int8", "fp16"])
def test_a_kernel_that_lacks_the_dtype_is_named(folder: Path, own: dict[str, str], dtype: str) -> None:
    made = done(folder, *QUICK, f"stage.dtype={dtype}", "stage.sizes=[40]", "stage.order=row", **own)
    found = read_result(made)
    assert found is not None
    assert dict(found.table)["numpy"] == f"not run: takes fp32, not {dtype}"
    assert found.metrics and not any("share" in metric.name for metric in found.metrics)


@pytest.mark.wide
def test_a_kernel_that_would_take_too_long_is_left_out(folder: Path, own: dict[str, str]) -> None:
    made = done(folder, *QUICK, "stage.kernels=[numpy,cpu_naive]", "stage.sizes=[16,400]", "stage.longest=0.002", **own)
    found = read_result(made)
    assert found is not None
    assert "cpu_naive" not in [row[0] for row in found.tables[1].rows]
    assert dict(found.table)["cpu_naive"].startswith("not run at 400 fp32, column-major: one product would take about ")


def test_another_compiler_makes_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid took the results of another compiler, 30 times as slow, for those of this one."""
    slow = tmp_path / "g++"
    slow.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    slow.chmod(0o755)
    bench, other = (experiment("torch", stage=stage, dataset="digits") for stage in ("wmma", "classifier"))
    usual = software(bench, ())
    monkeypatch.setenv("CXX", str(slow))
    assert software(bench, ())["c++"].startswith(f"{slow}, ")
    assert {name for name, version in software(bench, ()).items() if usual[name] != version} == {"c++"}
    assert "c++" not in software(other, ())


def test_what_padding_costs_and_gains() -> None:
    """Of rates that are known: twice as fast on multiples of 16 as elsewhere."""
    sizes = [256 + step for step in STEPS]
    rates = {size: 100.0 if size % 16 == 0 else 50.0 for size in sizes}
    seconds = {size: 2 * size**3 / (rate * 1e9) for size, rate in rates.items()}
    samples = {size: [0.99 * one, *3 * [one], 1.01 * one] for size, one in seconds.items()}
    around = Around({"one": rates}, {"one": seconds}, {"one": samples})
    assert around.padded("one", 271, 16) == pytest.approx(100 * (271 / 272) ** 3)
    gain, unit = around.gain("one", 271)
    assert gain == pytest.approx(2 * (271 / 272) ** 3) and unit == 8  # 272 is the next multiple of 8 too
    assert around.gain("one", 256)[0] == pytest.approx(1)
    assert all(next_multiple(size, unit) in rates for size in sizes for unit in (8, 16, 64))
    off = [around.gain("one", size)[0] for size in sizes if size % 8]
    assert around.typical_gain("one") == pytest.approx(sorted(off)[len(off) // 2])


def test_noise_is_no_gain_of_padding() -> None:
    """The best of three paddings is above 1 by chance: it counts where the samples' ranges do not overlap, of five
    samples at least. Of three they lay apart at one size in ten where nothing differed."""
    generator = np.random.default_rng(0)
    sizes = [256 + step for step in STEPS]
    off, named = [size for size in sizes if size % 8], 0
    for n in (3, 4, 5) * 30:
        samples = {size: size**3 * generator.uniform(0.8, 1.2, n) for size in sizes}
        seconds = {size: float(np.median(each)) for size, each in samples.items()}
        rates = {size: 2 * size**3 / one / 1e9 for size, one in seconds.items()}
        around = Around({"one": rates}, {"one": seconds}, {"one": samples})  # type: ignore[dict-item]  # arrays are sequences
        assert max(around.gain("one", size)[0] for size in off) > 1
        assert around.typical_gain("one") == 1
        named += sum(around.certain("one", size) for size in off)
    assert named < 0.02 * 90 * len(off)


def test_the_table_of_padding_fits_a_terminal() -> None:
    """A row without a gain took two lines, and the head of the rates was split."""
    sizes = [4096 + step for step in STEPS]
    seconds = dict.fromkeys(sizes, 1.0)
    around = Around(
        {"one": dict.fromkeys(sizes, 12_345.0)}, {"one": seconds}, {"one": dict.fromkeys(sizes, (1.0,) * 5)}
    )
    (table,) = shown(around)
    file = io.StringIO()
    show_table(Console(file=file, width=80), table)
    assert len(file.getvalue().splitlines()) == 2 + len(STEPS)
    assert table.columns[2] == "GFLOP/s" and {row[6:] for row in table.rows} == {("", ""), ("none", "")}
    gain = dict(padding.summary())["gain"]
    assert "; none: the ranges of the samples overlap, or have fewer than 5; -: " in gain


def test_a_single_sample_and_a_busy_machine_make_no_gain_of_padding() -> None:
    """A range of one point overlaps with nothing: padding by 8 gained -48 % and +69 %, both as certain."""
    sizes = [256 + step for step in STEPS]
    rates = {size: 100.0 if size % 16 == 0 else 50.0 for size in sizes}
    seconds = {size: 2 * size**3 / (rate * 1e9) for size, rate in rates.items()}
    for n, gain in ((1, 1.0), (2, 1.0), (4, 1.0), (5, pytest.approx(1.9, abs=0.1))):
        samples = {size: [one] * n for size, one in seconds.items()}
        around = Around({"one": rates}, {"one": seconds}, {"one": samples})
        assert around.typical_gain("one") == gain
        assert [one.name for one in metrics(around)] == ["padding/one/off_8_share", "padding/one/gain"]
    busy = replace(around, uncertain=["one"])
    assert metrics(busy) == ()
    assert shown(busy)[0].title.endswith("64; uncertain, as the notes say")
    assert {row[6:] for row in shown(busy)[0].rows} == {("", ""), ("-", "")}  # NumPy's gained +78199 %, by 152


@pytest.mark.wide
def test_rates_on_and_off_multiples(folder: Path, own: dict[str, str]) -> None:
    few = ("stage.kernels=[numpy,cpu_packed]", "stage.sizes=[64]", "stage.around=65")
    made = done(folder, *QUICK, *few, **own)
    found = read_result(made)
    assert found is not None
    assert [table.title.partition(":")[0] for table in found.tables[1:]] == ["numpy", "cpu_packed"]
    assert [row[0] for row in found.tables[1].rows] == [str(128 + step) for step in STEPS]
    assert (made / "artifacts/figures/padding.png").is_file()
    kept = {"padding/numpy/gain", "padding/cpu_packed/off_8_share"} & {metric.name for metric in found.metrics}
    assert len(kept) == (0 if any("at work" in note for note in found.notes) else 2)  # other tests


@pytest.mark.parametrize("had", [1.0, 0.3])
def test_a_ceiling_that_others_lowered_is_drawn_as_one(had: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other processes the probe itself is slow: kernels stood ten times above what was drawn as their limit."""
    bench = Bench(Wmma(kernels=(CpuNaive(),), sizes=((64, 64, 64),), threads=2).plan(0), None)  # type: ignore[arg-type]
    (gemm,) = bench.plan.problems
    bench.verdicts["cpu_naive"], bench.times[gemm]["cpu_naive"] = Verdict(1, 0.0, 0.0), Times(1, [1e-6], [1e-6])
    bench.ceilings = Ceilings(flop_per_s=(9e9,), bytes_per_s=(40e9,), cores_had=had)
    bench.cores_had.shares = [had]
    drawn = canvas(7.2, 4.4)
    monkeypatch.setattr(figures, "canvas", lambda *_: drawn)
    monkeypatch.setattr(figures, "save", lambda *_: None)
    figures.roofline(Path("roofline.png"), bench, ["cpu_naive"], bench.ceilings, bench.ceilings.peak / 1e9)
    (axes,) = drawn.axes
    said, is_lowered = [text.get_text() for text in axes.texts], had < 1
    at_least = "at least " if is_lowered else ""
    assert said == [f"multiply-adds on registers, {at_least}9.00 GFLOP/s", f"memory, {at_least}40.0 GB/s"]
    assert axes.get_lines()[0].get_linestyle() == (":" if is_lowered else "-")
    assert drawn.get_suptitle().endswith("2 threads beside other processes" if is_lowered else "2 threads")
    # Its rate is 58 times that ceiling, of which no share is kept.
    bench.errors[gemm, "cpu_naive"], bench.facts["cpu_naive"] = Verdict(1, 0.0, 0.0), {}
    assert ("of peak" in tables.timed(bench)[0].columns) is not is_lowered
    assert ("64x64x64/cpu_naive/of_peak" in {one.name for one in tables.metrics(bench)}) is not is_lowered
    # It has one of the two threads that the peak is of.
    bench.facts["cpu_naive"] = {"threads": 1}
    legend = "of the FMA peak of all 2 threads, also where a kernel has fewer"
    assert dict(tables.summary(bench)).get("of peak") == (None if is_lowered else legend)
    bench.facts["cpu_naive"] = {"threads": 2}
    assert "of peak" not in dict(tables.summary(bench))


def drawn_by(monkeypatch: pytest.MonkeyPatch, module: ModuleType, draw: Callable[[], None]) -> Figure:
    """The figure that `draw` makes with the canvas of the module."""
    kept: list[Figure] = []

    def kept_canvas(width: float, height: float) -> Figure:
        kept.append(canvas(width, height))
        return kept[-1]

    monkeypatch.setattr(module, "canvas", kept_canvas)
    draw()
    return kept[-1]


@pytest.mark.parametrize("size", [(1, 1, 1), (1, 1, 100_000), (512, 512, 512)])
def test_the_names_of_a_rooflines_ceilings_are_clear_of_lines_and_edges(
    size: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a product of few FLOP per byte the roof's name ran over the y axis; that of the memory lay on its line."""
    bench = Bench(Wmma(kernels=(CpuNaive(),), sizes=(size,), threads=2).plan(0), None)  # type: ignore[arg-type]
    (gemm,) = bench.plan.problems
    bench.verdicts["cpu_naive"], bench.times[gemm]["cpu_naive"] = Verdict(1, 0.0, 0.0), Times(1, [1e-3], [1e-3])
    bench.ceilings = roof = Ceilings(flop_per_s=(233e9,), bytes_per_s=(24e9,), cores_had=0.3)
    bench.cores_had.shares = [0.3]
    path = tmp_path / "roofline.png"
    figure = drawn_by(monkeypatch, figures, lambda: figures.roofline(path, bench, ["cpu_naive"], roof, roof.peak / 1e9))
    (axes,) = figure.axes
    assert all(text.get_window_extent().x0 >= axes.bbox.x0 for text in axes.texts)
    low, high = axes.get_xlim()
    assert sum(low <= tick <= high for tick in axes.get_xticks()) >= 5
    start, ridge, end = axes.transData.transform(axes.get_lines()[0].get_xydata())
    assert start[0] < ridge[0] < end[0]
    memory = axes.texts[-1]
    slope = math.degrees(math.atan2(ridge[1] - start[1], ridge[0] - start[0]))
    assert memory.get_rotation() == pytest.approx(slope, abs=0.1)
    above = memory.get_transform().transform(memory.get_position()) - start
    assert above == pytest.approx([0, 4 / 72 * figure.dpi])


def test_a_rooflines_title_lies_in_the_figure_beside_a_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the axes, which the legend makes narrow, it was cut at the figure's left edge."""
    name = "a_matrix_product_of_forty_one_letters_xxx"
    bench = seen({"numpy": (1e-3,)}, 0.3)
    bench.plan = replace(bench.plan, kernels=(*bench.plan.kernels, CppSource(file=f"{name}.cpp")))
    bench.verdicts[name], bench.times[bench.plan.problems[0]][name] = Verdict(1, 0.0, 0.0), Times(1, [1e-3], [1e-3])
    roof = Ceilings(flop_per_s=(233e9,), bytes_per_s=(24e9,), cores_had=0.3)
    path = tmp_path / "roofline.png"
    figure = drawn_by(monkeypatch, figures, lambda: figures.roofline(path, bench, ["numpy", name], roof, 233.0))
    (title,) = figure.texts
    box = title.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.axes[0].get_window_extent().y1 <= box.y0


@pytest.mark.parametrize("kernels", [2, 6])
def test_a_ladders_labels_lie_in_the_figure_and_have_digits(
    kernels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside two kernels the yardstick's label was cut off, and 0.24 GFLOP/s was `numpy 0`."""
    second = 2 * 64**3 / 0.24e9
    bench = seen({"numpy": (second,), **dict.fromkeys(LADDER[:kernels], (10 * second,))}, 1.0)
    rungs = sorted((one for one in bench.shown.values() if one.rung is not None), key=lambda one: one.rung or 0)
    figure = drawn_by(monkeypatch, figures, lambda: figures.ladder(tmp_path / "ladder.png", bench, rungs))
    (axes,) = figure.axes
    said = [text.get_text() for text in axes.texts]
    assert said[-1] == "numpy 0.24" and said[1::2][:2] == ["0.024", "0.024  1.00×"]
    yardstick, first = (axes.texts[at].get_window_extent() for at in (-1, 0))
    (title,) = figure.texts
    assert first.y1 < axes.bbox.y1 < yardstick.y0 and yardstick.y1 < title.get_window_extent().y0
    assert title.get_window_extent().y1 <= figure.bbox.y1


@pytest.mark.parametrize("pad", [(0, 0, 0), (16, 8, 24)])
def test_a_ladders_title_lies_in_the_figure(
    pad: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three sizes, beside other processes, it was cut at the figure's right edge."""
    bench = seen(dict.fromkeys(LADDER[:2], (1e-3,)), 0.3)
    (one,) = bench.plan.problems
    gemm = replace(one, m=2047, n=515, k=1023, pad=pad, alpha=-0.5 if any(pad) else 1.0)
    bench.plan, bench.times = replace(bench.plan, problems=(gemm,)), {gemm: bench.times[one]}
    rungs = sorted((one for one in bench.shown.values() if one.rung is not None), key=lambda one: one.rung or 0)
    figure = drawn_by(monkeypatch, figures, lambda: figures.ladder(tmp_path / "ladder.png", bench, rungs))
    (title,) = figure.texts
    box = title.get_window_extent()
    assert title.get_text() == f"D = alpha·A·B + beta·C, {gemm}, 2 threads beside other processes"
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.axes[0].get_window_extent().y1 <= box.y0 and box.y1 <= figure.bbox.y1


def test_the_title_of_padding_lies_in_the_figure_beside_a_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The legend makes the axes narrow."""
    sizes = {256 + step: 1.0 for step in STEPS}
    name = "a_matrix_product_of_forty_one_letters_xxx"
    around = Around({"numpy": sizes, name: sizes}, {"numpy": sizes, name: sizes}, {})
    title, path = figures.title(seen({"numpy": (1.0,)}, 0.3), ["numpy"]), tmp_path / "padding.png"
    figure = drawn_by(monkeypatch, padding, partial(padding.draw, path, around, title))
    (drawn,) = figure.texts
    assert 0 <= drawn.get_window_extent().x0 < drawn.get_window_extent().x1 <= figure.bbox.x1


def test_sizes_that_lie_close_together_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beside a multiple of 16 lay one over the other."""
    stage = build_as(Wmma, {"kernels": ("cpu_naive",), "sizes": (64, *range(496, 524, 4), 1024), "threads": 2}, "stage")
    bench = Bench(stage.plan(0), None)  # type: ignore[arg-type]
    bench.verdicts["cpu_naive"] = Verdict(1, 0.0, 0.0)
    for gemm in bench.plan.problems:
        bench.times[gemm]["cpu_naive"] = Times(1, [1e-3], [1e-3])
    figure = drawn_by(monkeypatch, figures, lambda: figures.against_size(tmp_path / "sizes.png", bench))
    named = figure.axes[0].get_xticklabels()
    assert [one.get_text() for one in named] == ["64", "496", "1024"]


def test_a_ladder_of_a_gpus_rates_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its axis had 600000 beside bars of 633,748, and its title did not say what was computed."""
    second = 2 * 64**3 / 600e12
    bench = seen({"numpy": (second,), **dict.fromkeys(LADDER[:2], (second,))}, 1.0)
    rungs = sorted((one for one in bench.shown.values() if one.rung is not None), key=lambda one: one.rung or 0)
    figure = drawn_by(monkeypatch, figures, lambda: figures.ladder(tmp_path / "ladder.png", bench, rungs))
    (axes,) = figure.axes
    assert "200,000" in [one.get_text() for one in axes.get_xticklabels()]
    assert figure.get_suptitle().startswith("D = alpha·A·B + beta·C, 64 fp32, column-major, ")


def test_the_figure_of_padding_says_where_and_beside_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {256 + step: 1.0 for step in STEPS}
    around = Around({"numpy": sizes}, {"numpy": sizes}, {})
    for had, end in ((1.0, "2 threads"), (0.3, "2 threads beside other processes")):
        title = figures.title(seen({"numpy": (1.0,)}, had), around.rates)
        path = tmp_path / "padding.png"
        figure = drawn_by(monkeypatch, padding, partial(padding.draw, path, around, title))
        assert figure.get_suptitle() == f"D = alpha·A·B + beta·C, fp32, column-major, {end}"


@given(st.floats(1e-3, 1e5), st.floats(1.1, 1e4))
def test_an_axis_of_a_logarithm_has_two_labels_at_least(low: float, times: float) -> None:
    """Between 13 and 99 GFLOP/s matplotlib had none, and losses from 2.6 to 3.1 had `3.1 × 10^0`."""
    axes = canvas(7.0, 4.0).add_subplot()
    axes.set(yscale="log", ylim=(low, low * times))
    log_labels(axes.yaxis)
    shown = [tick for tick in axes.yaxis.get_majorticklocs() if low <= tick <= low * times]
    assert len(shown) >= 2
    labels = [axes.yaxis.get_major_formatter()(tick, 0) for tick in shown]
    assert [float(label.replace(",", "")) for label in labels] == pytest.approx(shown)
    assert len(shown) <= 16 and all(one > 0 for one in axes.yaxis.get_majorticklocs())


@given(st.floats(1e-3, 1e3), st.floats(2, 1e6))
def test_labels_of_an_axis_of_powers_are_few_and_true(low: float, times: float) -> None:
    ticks, labels = figures._powers_of_two(low, low * times)
    assert len(ticks) == len(labels) <= figures.TICKS and all(low <= one <= low * times for one in ticks)
    assert [float(Fraction(label)) for label in labels] == ticks
