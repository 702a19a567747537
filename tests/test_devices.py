"""stage=devices: ceilings that are verified before they are timed, kept for the machine as it is, and shown."""

from __future__ import annotations

import csv
import itertools
import json
import os
import platform
import socket
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import own_ceilings
import pytest
import yaml
from command import done, pipeline, refused

from pipeline.backends.shared import ceiling_bench
from pipeline.backends.shared.ceiling_bench import Bench as FrameworkBench
from pipeline.backends.shared.ceiling_bench import Operations, convolved
from pipeline.errors import RunError, UserError
from pipeline.kernels.cpu import ceilings as cpu_ceilings
from pipeline.kernels.cpu.compiled import compiled, missing_compiler
from pipeline.machine import energy, free_memory, paths
from pipeline.machine.ceilings import DOUBT, HAD, Ceiling, Ceilings
from pipeline.machine.device import Device, Place, canonical, gpus
from pipeline.machine.energy import Meter
from pipeline.machine.precision import ROUNDOFF
from pipeline.runs.code.code_hash import closure
from pipeline.runs.result import read_result
from pipeline.stages.devices import bench as devices_bench
from pipeline.stages.devices import cores, inventory, kept, probe, sources, tables
from pipeline.stages.devices.sources import SOURCES, Source
from pipeline.stages.devices.stage import Devices, kept_or_why

HERE = Path(__file__).parent
CPU = Place("cpu")
NOTHING: Any = None  # the stage asks neither the experiment nor the device
KEPT = Ceiling(name="cpu/probe/triad", unit="bytes/s", of="64.0 MiB each", samples=(3e9, 1e9, 2e9))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that take no time worth measuring."""
    monkeypatch.setattr(ceiling_bench, "SIZES", (32, 64))
    monkeypatch.setattr(ceiling_bench, "SAMPLE_S", 1e-4)


def last(found: Iterable[list[Ceiling]]) -> list[Ceiling]:
    """All that a source has found, when it is done."""
    *_, every = found
    return every


def measured(operations: Operations, meter: Meter | None = None) -> dict[str, Ceiling]:
    """By what was done."""
    found = last(FrameworkBench(operations, "cpu", meter).measured(rounds=3))
    return {one.name.removeprefix("cpu/numpy/"): one for one in found}


@pytest.mark.usefixtures("small")
def test_what_is_right_is_timed() -> None:
    found = measured(own_ceilings.Right())
    assert len(found) == 6
    for dtype in ("float16", "float32", "float64"):
        one = found[f"product/{dtype}"]
        assert one.fault is None and len(one.samples) == 3 and min(one.samples) > 0
        assert one.seen == f"{dtype} on cpu" and one.of == "64 × 64"
        assert one.error is not None and 0 <= one.error <= ceiling_bench.bound(dtype, 64)
    assert found["product/bfloat16"].missing == "NumPy has no bfloat16"
    assert found["convolution"].missing == "NumPy has no convolution of images"
    assert 0 < min(found["launch"].samples) < 1e-3  # other processes may slow down any


WRONG: dict[type[Operations], tuple[str, str]] = {
    own_ceilings.Transposed: ("product/float32", "differs from NumPy's by 1."),
    own_ceilings.OtherOperand: ("product/float32", "differs from NumPy's by 1."),
    own_ceilings.Narrow: ("product/float64", "differs from NumPy's by "),
    own_ceilings.InBfloat16: ("product/float16", "differs from NumPy's by "),
    own_ceilings.ThreeQuarters: ("product/float16", "differs from NumPy's by 5."),
    own_ceilings.NarrowOperands: ("product/float64", "numbers are rounded by 3.0e-08, more than float64 rounds them"),
    own_ceilings.SaysSo: ("product/float64", "computes in float32, not in float64"),
    own_ceilings.Elsewhere: ("launch", "ran on gpu:0, not on cpu"),
    own_ceilings.Nan: ("product/float16", "differs from NumPy's by nan of its norm"),
    own_ceilings.Refusing: ("product/float32", "raised NotImplementedError: no such operation"),
    own_ceilings.Unsynchronised: ("product/float32", "the timer was stopped before the result was computed"),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("kind", "said"), WRONG.items(), ids=[kind.__name__ for kind in WRONG])
def test_what_is_wrong_has_no_times(kind: type[Operations], said: tuple[str, str]) -> None:
    found = measured(kind())
    name, fault = said
    assert str(found[name].fault).startswith(fault), found[name].fault
    assert found[name].samples == ()
    if kind is own_ceilings.Narrow:  # which is right in the dtype that it computes in
        assert found["product/float32"].fault is None


@pytest.mark.usefixtures("small")
def test_a_device_that_computes_later_is_waited_for() -> None:
    one = measured(own_ceilings.Asynchronous())["product/float64"]
    assert one.fault is None
    assert max(one.samples) < 2 * 64**3 / own_ceilings.TAKES_S


@pytest.mark.usefixtures("small")
def test_one_that_goes_wrong_late_has_no_times() -> None:
    """After it was verified and timed: the last result is compared too."""

    class Stopping(own_ceilings.Right):
        calls = 0

        def product(self, a: Any, b: Any) -> Any:
            def run() -> np.ndarray:
                self.calls += 1
                return np.asarray(a @ b) if self.calls < 10 else np.zeros_like(a)

            return run

    assert str(measured(Stopping())["product/float64"].fault).startswith("differs from NumPy's by 1.0e+00")


@pytest.mark.usefixtures("small")
def test_what_is_compared_at_the_end_is_what_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is wrong in the last sample alone: verified once, timed twice for its size and in three rounds."""
    monkeypatch.setattr(ceiling_bench, "SAMPLE_S", 1e-9)  # of one call

    class WrongOnce(own_ceilings.Right):
        def product(self, a: Any, b: Any) -> Any:
            calls = itertools.count(1)
            return lambda: np.zeros_like(a) if next(calls) == 1 + 2 + 3 else np.asarray(a @ b)

    one = measured(WrongOnce())["product/float64"]
    assert str(one.fault).startswith("differs from NumPy's by 1.0e+00") and not one.samples


@pytest.mark.usefixtures("small")
def test_the_energy_of_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a meter that counts three joules for each product."""
    monkeypatch.setattr(ceiling_bench, "ENERGY_S", 0.05)

    class Counting(own_ceilings.Right):
        calls = 0

        def product(self, a: Any, b: Any) -> Any:
            def run() -> np.ndarray:
                self.calls += 1
                return np.asarray(a @ b)

            return run

    operations = Counting()
    one = measured(operations, lambda: 3.0 * operations.calls)["energy/float64"]
    assert one.unit == "J/FLOP" and one.median == pytest.approx(3 / (2 * 64**3))


@pytest.mark.usefixtures("small")
def test_an_energy_that_cannot_be_read_is_a_separate_fault() -> None:
    def broken() -> float:
        raise OSError("no meter")

    found = measured(own_ceilings.Right(), broken)
    assert found["energy/float64"].fault == "raised OSError: no meter" and not found["energy/float64"].samples
    assert found["product/float64"].fault is None and found["product/float64"].samples


def test_a_quarter_of_the_terms_is_missed_whatever_the_dtype() -> None:
    assert max(ceiling_bench.bound(dtype, max(ceiling_bench.SIZES)) for dtype in ROUNDOFF) < 0.01


def test_the_reference_convolves() -> None:
    generator = np.random.default_rng(0)
    x, w = generator.normal(size=(2, 4, 5, 3)), generator.normal(size=(3, 3, 3, 2))
    found = convolved(x, w)
    assert found.shape == (2, 4, 5, 2)
    for image, row, column, out in ((0, 0, 0, 0), (1, 2, 3, 1), (1, 3, 4, 0)):
        expected = sum(
            x[image, row + i - 1, column + j - 1, c] * w[i, j, c, out]
            for i in range(3)
            for j in range(3)
            for c in range(3)
            if 0 <= row + i - 1 < 4 and 0 <= column + j - 1 < 5
        )
        assert found[image, row, column, out] == pytest.approx(expected)


# The processor's own


def test_without_a_compiler_the_probe_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (one,) = last(probe.measured("cpu", 3))
    assert (one.name, one.missing) == ("cpu/probe", f"needs {missing_compiler()}")
    assert "CXX=no-such-compiler is not one" in str(one.missing)


SHORTER = """
extern "C" double fused(long rounds, int bytes, double *totals, int threads) {
    return all_rounds(rounds / 2, bytes, totals, threads);
}
"""
STOPPED = """
extern "C" double stream(int kernel, long length, int bytes, void *x, const void *y, const void *z, double factor,
                         int threads) {
    static int calls = 0;  // three that fill, one that is not timed
    if (++calls > 4 && kernel != FILL) return 1e-9;
    return all_passes(kernel, length, bytes, x, y, z, factor, threads);
}
"""


def changed_probe(folder: Path, old: str, new: str, more: str) -> Any:
    """The probe with a function renamed, and another in its place."""
    for name in ("micro.h", "team.h"):
        (folder / name).write_text((cpu_ceilings.HERE / name).read_text())
    source = (cpu_ceilings.HERE / "probe.cpp").read_text()
    assert source.count(f"double {old}(") == 1
    (folder / "probe.cpp").write_text(source.replace(f"double {old}(", f"double {new}(") + more)
    made = compiled(folder / "probe.cpp", (folder / "micro.h", folder / "team.h"))
    return lambda: made


@pytest.mark.skipif(missing_compiler() is not None, reason="needs a C++ compiler")
def test_what_the_probe_does_while_it_is_timed_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_ceilings, "array_bytes", lambda: 2**16)
    for dtype in cpu_ceilings.DTYPES:
        assert cpu_ceilings.MultiplyAdds(1, dtype).seconds(2**20 + 1) > 0
    assert len(cpu_ceilings.stream(1).bytes_per_s) == 4
    monkeypatch.setattr(cpu_ceilings, "probe", changed_probe(tmp_path, "fused", "all_rounds", SHORTER))
    with pytest.raises(RunError, match="the probe's multiply-adds give"):
        cpu_ceilings.MultiplyAdds(1, "float32").seconds(1000)
    monkeypatch.setattr(cpu_ceilings, "probe", changed_probe(tmp_path, "stream", "all_passes", STOPPED))
    with pytest.raises(RunError, match=r"the probe's copy gives -1\.0 to -1\.0, not 1\.0"):
        cpu_ceilings.stream(1)


@pytest.mark.wide
@pytest.mark.skipif(missing_compiler() is not None, reason="needs a C++ compiler")
def test_bytes_are_streamed_once_and_not_for_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_ceilings, "array_bytes", lambda: 2**16)
    streamed, stream = [], cpu_ceilings.stream

    def counted(*arguments: Any) -> Any:
        streamed.append(arguments)
        return stream(*arguments)

    for module in (cpu_ceilings, probe):
        monkeypatch.setattr(module, "stream", counted)
    (one,) = last(cores.measured("cpu", 1))
    assert one.name == HAD and len(one.samples) == 2 and min(one.samples) > 0 and not streamed
    found = last(probe.measured("cpu", 1))
    assert [each.name.removeprefix("cpu/probe/") for each in found] == [
        *("fma/float32", "fma/float64", "copy", "scale", "add", "triad", "cores")
    ]
    assert len(streamed) == 1


# Paths


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Blocks of 1 MiB, and files in a folder of the test."""
    monkeypatch.setattr(paths, "LARGE", 2**20)
    monkeypatch.setattr(paths, "CALLS", 5)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("short")
def test_paths_are_measured() -> None:
    found = last(paths.measured("cpu", 2))
    names = ["memory", "shared memory", "pipe", "disk write", "disk read", "page cache"]
    assert [one.name for one in found] == [
        f"cpu/paths/{name}/{what}" for name in names for what in ("bandwidth", "latency")
    ]
    for one in found:
        assert one.fault is None
        if one.missing is None:
            assert len(one.samples) == 2 and min(one.samples) > 0
    assert not list(Path.cwd().iterdir())


def wrong_receiver(pipe: Any, _: int) -> None:
    """Answers as if it had received something else."""
    while True:
        pipe.send_bytes(paths.ANSWER if pipe.recv_bytes() else b"\1" * 8)


@pytest.mark.usefixtures("short")
def test_what_arrives_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_receive", wrong_receiver)
    monkeypatch.setattr(paths, "_write", lambda handle, data: os.pwrite(handle, bytes(len(data)), 0))
    found = {one.name: one for one in last(paths.measured("cpu", 1))}
    assert found["cpu/paths/pipe"].fault == "what came through a pipe differs from what was sent"
    assert found["cpu/paths/file"].fault == "a file differs from what was written"
    assert found["cpu/paths/memory/bandwidth"].samples


@pytest.mark.usefixtures("short")
def test_a_file_that_stays_in_memory_says_nothing_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "resident", lambda _: 1.0)
    found = {one.name: one for one in last(paths.measured("cpu", 1))}
    for path in ("disk write", "disk read"):
        for what in ("bandwidth", "latency"):
            one = found[f"cpu/paths/{path}/{what}"]
            assert (one.missing, one.samples) == ("Linux keeps the file in the page cache", ())
    assert found["cpu/paths/page cache/bandwidth"].samples


@pytest.mark.usefixtures("short")
def test_a_file_that_stays_in_memory_once_it_was_read_has_no_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.0, 1.0])
    monkeypatch.setattr(paths, "resident", lambda _: next(shares))
    found = {one.name: one for one in last(paths.measured("cpu", 1))}
    assert found["cpu/paths/disk read/latency"].missing == "Linux keeps the file in the page cache"


def keeps_the_first(pipe: Any, size: int) -> None:
    """Small messages do not arrive: the beginning of the large one stays."""
    room, got = bytearray(size), 0
    while True:
        message = pipe.recv_bytes()
        if len(message) == size:
            room[:] = message
        got = len(message) or got
        pipe.send_bytes(paths.ANSWER if message else zlib.crc32(room[:got]).to_bytes(8, "little"))


@pytest.mark.usefixtures("short")
def test_a_small_message_that_does_not_arrive_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_receive", keeps_the_first)
    with pytest.raises(RunError, match="what came through a pipe differs"):
        paths.by_pipe(paths.random_block(2**20), 1)


# Energy


def test_energy_by_rapl(tmp_path: Path) -> None:
    """All packages are added, parts of them are not; a counter that begins anew goes on."""
    for name, counter in (("intel-rapl:0", 9_000_000), ("intel-rapl:1", 1_000_000), ("intel-rapl:0:0", 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "max_energy_range_uj").write_text("10000000\n")
        (tmp_path / name / "energy_uj").write_text(f"{counter}\n")
    meter = energy.of_processor(tmp_path)
    assert meter is not None and meter() == 0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("500000\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("3000000\n")
    assert meter() == pytest.approx(1.5 + 2)


def test_a_machine_without_a_meter_says_so(tmp_path: Path) -> None:
    assert energy.of_processor(tmp_path) is None


# What is kept


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    return tmp_path / "ceilings"


@pytest.mark.usefixtures("cache")
def test_what_is_kept_is_found_again() -> None:
    assert kept.kept() is None
    made = kept.keep([KEPT], kept.facts())
    found = kept.kept()
    assert found is not None and (list(found.rows), found.date) == ([KEPT], made.date)
    assert found.median("cpu/probe/triad") == 2e9
    assert found.median("cpu/probe/copy") is None


@pytest.mark.usefixtures("cache")
@pytest.mark.wide
def test_another_version_driver_core_or_code_has_nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other.cpp").write_text("")
    monkeypatch.setattr(kept, "compiler", lambda: "/usr/bin/g++")
    monkeypatch.setattr(kept, "version_of", lambda _: "g++ 13")
    kept.keep([KEPT], kept.facts())
    for name, value in (
        ("version", lambda _: "0.0.1"),
        ("driver_version", lambda: "580.1"),
        ("gpus", lambda: (kept_gpu(),)),
        ("gpu_limits", lambda: [{"power_mw": 350_000, "clock_mhz": None}]),
        ("environment", lambda: {"MKL_CBWR": "COMPATIBLE"}),
        ("closure", lambda _: {"pipeline.machine.paths": "changed"}),
        ("COMPILED", (str(tmp_path / "other.cpp"),)),
        ("compiler", lambda: None),
        ("version_of", lambda _: "g++ 99"),
        ("libraries", lambda: {"nvidia-cublas": "0.0.1"}),
        ("cpu_limits", lambda: ["50000 100000"]),
        ("memory_gib", lambda: 1),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(kept, name, value)
            assert kept.kept() is None, name
        assert kept.kept() is not None
    for owner, name in ((socket, "gethostname"), (platform, "python_version")):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, lambda: "another")
            assert kept.kept() is None, name
    for name in ("OMP_WAIT_POLICY", "JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "another")
            assert kept.kept() is None, name
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 77})
    assert kept.kept() is None


def test_limits_of_all_groups_around_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pod" / "own").mkdir(parents=True)
    (tmp_path / "pod" / "cpu.max").write_text("150000 100000\n")
    (tmp_path.parent / "cpu.max").write_text("none of them\n")
    monkeypatch.setattr(free_memory, "GROUPS", tmp_path)
    monkeypatch.setattr(free_memory, "own_group", lambda: "pod/own")
    assert kept.cpu_limits() == ["150000 100000"]


def kept_gpu() -> Any:
    from pipeline.machine.device import Gpu

    return Gpu(index=0, name="NVIDIA H200", memory_bytes=1, compute_capability=(9, 0))


def test_a_damaged_file_is_not_measured(cache: Path) -> None:
    kept.keep([KEPT], kept.facts())
    (file,) = cache.iterdir()
    for damaged in ("", "{", '{"rows": 1}', '{"rows": [{"name": 1}], "date": ""}'):
        file.write_text(damaged)
        assert kept.kept() is None


def test_a_cache_that_cannot_be_written_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError) as error:
        Devices(measure=True).rehearse(NOTHING, NOTHING)
    assert str(error.value) == (
        f"cache folder {tmp_path / 'file' / 'ceilings'}: cannot write: Not a directory; "
        "name another with PIPELINE_CACHE"
    )


def test_all_that_measures_decides_what_is_kept() -> None:
    """The sources, and what they import: the reference, and a framework's arrays."""
    found = closure(kept.MODULES)
    others = ("backends.shared.form_bench", "backends.torch.arrays", "kernels.cpu.compiled", "machine.free_memory")
    assert {*(source.module for source in SOURCES), *(f"pipeline.{name}" for name in others)} <= found.keys()
    for file in kept.COMPILED:
        assert (kept.ROOT / file).is_file(), file


# The stage


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "is_installed", lambda name: name != "jax")
    absent = {source.name: source.absent(CPU) for source in SOURCES if "cpu" in source.on}
    assert absent.pop("jax") == "needs jax, which is not installed"
    assert set(absent.values()) == {None}


@pytest.mark.usefixtures("cache")
def test_a_process_that_ends_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices_bench, "SOURCES", (Source("lost", "no_such_source", ("cpu",)),))
    monkeypatch.setattr(energy, "meter", lambda _: None)
    said: list[str] = []
    log: Any = SimpleNamespace(say=said.append)
    bench = devices_bench.Bench(1, log, tmp_path / "s.csv", [CPU])
    bench.measure()
    why = "ended with exit status 1: ModuleNotFoundError: No module named 'no_such_source'"
    assert [*bench.faults()] == [f"cpu/lost: {why}"]
    assert said == [
        f"cpu/lost: went wrong: {why}",
        "cpu/energy: not measured: the machine does not report the energy that it uses",
    ]


@pytest.mark.usefixtures("cache")
def test_what_a_source_had_measured_outlives_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that ends in its third round: two samples of each operation, and what it lacks, stay."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(devices_bench, "SOURCES", (Source("numpy", "own_ceilings", ("cpu",)),))
    monkeypatch.setattr(energy, "meter", lambda _: object())
    log: Any = SimpleNamespace(say=print)
    bench = devices_bench.Bench(3, log, tmp_path / "s.csv", [CPU])
    bench.measure()
    assert [*bench.faults()] == ["cpu/numpy: ended with exit status 9: the machine has no memory left"]
    found = {one.name: one for one in bench.found}
    for what in ("product/float32", "product/float64", "launch"):
        one = found[f"cpu/numpy/{what}"]
        assert len(one.samples) == 2 and one.error is not None and str(one.seen).endswith("on cpu")
    assert found["cpu/numpy/convolution"].missing
    assert len((tmp_path / "s.csv").read_text().splitlines()) == 1 + 2 * 4


def test_the_cores_are_asked_for_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shares = iter([99.0, 60.0])
    had = lambda *_: ([Ceiling(name=HAD, unit="%", samples=(next(shares),))], None)  # noqa: E731
    monkeypatch.setattr(devices_bench, "apart", had)
    monkeypatch.setattr(devices_bench, "SOURCES", (Source("probe", "none", ("cpu",)),))
    log: Any = SimpleNamespace(say=print)
    bench = devices_bench.Bench(1, log, tmp_path / "s.csv", [CPU])
    bench.measure()
    assert "had 60 % of the cores" in dict(tables.about(Ceilings(bench.found, "")))["too low"]


def test_a_fault_of_the_second_probe_is_one_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = iter([([Ceiling(name=HAD, unit="%", samples=(99.0,))], None), ([], "ended")])
    monkeypatch.setattr(devices_bench, "apart", lambda *_: next(calls))
    monkeypatch.setattr(devices_bench, "SOURCES", (Source("probe", "none", ("cpu",)),))
    said: list[str] = []
    log: Any = SimpleNamespace(say=said.append)
    bench = devices_bench.Bench(1, log, tmp_path / "s.csv", [CPU])
    bench.measure()
    assert [*bench.faults()] == ["cpu/cores: ended"]
    assert said[-1] == "cpu/cores: went wrong: ended"


def test_an_interrupted_measurement_leaves_its_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(source: Source, *_: Any) -> tuple[list[Ceiling], None]:
        if source.name == "second":
            raise KeyboardInterrupt
        return [KEPT], None

    monkeypatch.setattr(devices_bench, "apart", interrupted)
    monkeypatch.setattr(devices_bench, "SOURCES", tuple(Source(name, "none", ("cpu",)) for name in ("first", "second")))
    samples = tmp_path / "samples.csv"
    log: Any = SimpleNamespace(say=print)
    with pytest.raises(KeyboardInterrupt):
        devices_bench.Bench(1, log, samples, [CPU]).measure()
    assert len(samples.read_text().splitlines()) == 1 + len(KEPT.samples)


@pytest.mark.usefixtures("cache")
def test_what_has_faults_does_not_replace_what_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    faulty = [Ceiling(name="cpu/torch", unit="FLOP/s", fault="ended")]
    assert kept_or_why([KEPT], kept.facts(), faulty=False) == "yes"
    assert kept_or_why(faulty, kept.facts(), faulty=True).startswith("no: something went wrong")
    found = kept.kept()
    assert found is not None and [*found.rows] == [KEPT]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "file"))
    assert "cannot write" in kept_or_why([KEPT], kept.facts(), faulty=False)


@pytest.mark.usefixtures("cache")
def test_what_was_measured_beside_others_does_not_replace_what_is_kept() -> None:
    """It is better than nothing, and named as too low."""
    beside, alone = ([KEPT, Ceiling(name=HAD, unit="%", samples=(99.0, had))] for had in (40.0, 96.0))
    assert kept_or_why(beside, kept.facts(), faulty=False) == "yes"
    assert kept_or_why(alone, kept.facts(), faulty=False) == "yes"
    said = kept_or_why(beside, kept.facts(), faulty=False)
    assert said == "no: other processes were at work: the probe had 40 % of the cores; what was kept before stays"
    found = kept.kept()
    assert found is not None and [*found.rows] == alone


@pytest.mark.usefixtures("cache")
def test_few_samples_do_not_replace_many() -> None:
    many, few = ([replace(KEPT, samples=(1.0,) * n)] for n in (100, 1))
    assert kept_or_why(many, kept.facts(), faulty=False) == "yes"
    said = kept_or_why(few, kept.facts(), faulty=False)
    assert said == "no: 1 samples, and what is kept has 100; what was kept before stays"
    found = kept.kept()
    assert found is not None and [*found.rows] == many


@pytest.mark.usefixtures("cache")
def test_what_is_kept_and_worse_is_replaced() -> None:
    """A first measurement that went wrong does not stand for ever."""
    faults = [Ceiling(name=f"cpu/{name}", unit="FLOP/s", fault="ended") for name in ("torch", "jax")]
    assert kept_or_why(faults, kept.facts(), faulty=True) == "yes"
    assert kept_or_why([KEPT, faults[0]], kept.facts(), faulty=True) == "yes"
    assert kept_or_why(faults, kept.facts(), faulty=True).startswith("no: something went wrong")
    found = kept.kept()
    assert found is not None and [*found.rows] == [KEPT, faults[0]]


@pytest.mark.usefixtures("cache")
def test_a_device_that_is_named_is_measured_alone_and_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a machine with a GPU, by a source that says where it ran."""

    def where(_: Source, place: str, __: int) -> tuple[list[Ceiling], None]:
        return [Ceiling(name=f"{place}/where/here", unit="s", samples=(1.0,))], None

    for module in (inventory, kept):
        monkeypatch.setattr(module, "gpus", lambda: (kept_gpu(),))
    monkeypatch.setattr(energy, "meter", lambda _: object())
    monkeypatch.setattr(devices_bench, "apart", where)
    monkeypatch.setattr(devices_bench, "SOURCES", (Source("where", "none", ("cpu", "gpu")),))
    journal = SimpleNamespace(write_receipt=lambda _: None)
    run: Any = SimpleNamespace(say=print, artifact=lambda _: tmp_path / "samples.csv", journal=journal)
    gpu, only = Place("gpu", 0), "was measured; leave device out to measure and keep all"
    for device, place, names, said in (
        ("auto", gpu, ["cpu/where/here", "gpu:0/where/here"], "yes"),
        ("cpu", CPU, ["cpu/where/here"], f"no: only cpu {only}"),
        ("cuda:0", gpu, ["gpu:0/where/here"], f"no: only gpu:0 {only}"),
    ):
        result = Devices(measure=True)._measured(inventory.asked_for(device, place), run, {}, ())
        assert [one.name for one in result.metrics if "where" in one.name] == names
        assert result.table[-1] == ("kept", said)
        found = kept.kept()
        assert found is not None and len(found.rows) == 2


@pytest.mark.parametrize("key", ["memory_limit=1GB", "logical_devices=2", "placement_log=true"])
def test_what_divides_a_device_is_refused_where_it_is_measured(key: str) -> None:
    name, _, text = key.partition("=")
    experiment: Any = SimpleNamespace(device=Device(**{name: yaml.safe_load(text)}))
    named: Any = SimpleNamespace(device=Device(name="cpu"))
    Devices().check(experiment)
    Devices(measure=True).check(named)
    with pytest.raises(UserError) as error:
        Devices(measure=True).check(experiment)
    said = f"device.{key} with stage.measure=true: ceilings are of whole devices; leave it out"
    assert str(error.value) == said


def test_ceilings_in_a_table() -> None:
    lost = Ceiling(name="cpu/jax", unit="FLOP/s", missing="needs jax, which is not installed")
    (table,) = tables.shown([KEPT, lost])
    assert table.title == "cpu · probe"
    assert table.rows == (("triad", "64.0 MiB each", "2.00", "GB/s", "1.00 to 3.00", "3", ""),)
    count, triad = tables.metrics([KEPT, lost])
    assert (count.value, triad.name, triad.value, triad.unit) == (1, "cpu/probe/triad", 2.0, "GB/s")
    assert tables.about(None) == [("ceilings", tables.NEVER)]
    found = Ceilings([KEPT, lost, Ceiling(name=HAD, unit="%", samples=(40.0, 41.0))], "2026-11-23 19:40")
    assert [name for name, _ in tables.about(found)] == ["ceilings", "too low", "cpu/jax"]
    assert "the probe had 40 % of the cores" in dict(tables.about(found))["too low"]


def test_what_several_ceilings_doubt_is_said_once() -> None:
    """On a processor with 260 MiB of caches four rows of STREAM were five lines each."""
    doubt = "an array has 512.0 MiB, less than 4 times the 260.0 MiB of the caches"
    of = f"512.0 MiB each{DOUBT}{doubt}"
    rows = [replace(KEPT, name=f"cpu/probe/{name}", of=of) for name in ("add", "triad")]
    (table,) = tables.shown(rows)
    assert [row[1] for row in table.rows] == ["512.0 MiB each (uncertain)"] * 2
    assert tables.about(Ceilings(rows, ""))[1:] == [("uncertain", f"cpu/probe/add, cpu/probe/triad: {doubt}")]


def test_a_device_is_listed_under_each_notation_that_is_taken() -> None:
    """TensorFlow's name within a task was missing where the backend is another, though it may be typed."""
    for place, about in ((Place("cpu"), "a processor"), (Place("gpu", 1), "a card")):
        listed = inventory.names(place, about).replace("\n", " ").split()
        torchs, short = {"cpu": ("cpu", "CPU:0"), "gpu": ("cuda:1", "GPU:1")}[place.kind]
        within = f"/device:{short}"
        assert {torchs, f"/{short}", within, f"/job:localhost/replica:0/task:0{within}"} <= set(listed)
        assert {canonical(name) for name in listed if name.startswith("/") or name == torchs} == {str(place)}


def test_without_a_gpu_the_names_of_the_first_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without one said only that there is none, and not what one would be called."""
    monkeypatch.setattr(inventory, "gpus", tuple)
    said = dict(inventory.rows("torch", ["cpu"]))["gpu"]
    assert said.startswith("no NVIDIA GPU found; the first would be\ntorch cuda:0 ·")
    assert said.endswith("/device:GPU:0 and /job:localhost/replica:0/task:0/device:GPU:0")


@pytest.mark.wide
def test_nothing_kept_is_said(tmp_path: Path) -> None:
    shown = pipeline(tmp_path, "stage=devices", COLUMNS="80", PIPELINE_CACHE=str(tmp_path))
    assert (shown.returncode, shown.stderr) == (0, "")
    text = " ".join(shown.stdout.split())
    assert "ceilings not measured: stage.measure=true does it, in about a minute" in text
    assert not (tmp_path / "ceilings").exists()


REFUSED = {
    "device.logical_devices=2 with stage.measure=true: ceilings are of whole devices; leave it out": (
        "stage.measure=true",
        "device.logical_devices=2",
        "backend=tensorflow",
    ),
    "stage.measure=true with stage.gpus=known: the table is of GPUs, not of this machine; leave it out": (
        "stage.gpus=known",
        "stage.measure=true",
    ),
    "stage.rounds=0: should be greater than 0": ("stage.measure=true", "stage.rounds=0"),
    "stage.rounds with stage.measure=false: nothing is measured; set stage.measure=true": ("stage.rounds=3",),
}


@pytest.mark.parametrize(("said", "words"), list(REFUSED.items()), ids=REFUSED)
def test_settings_that_make_no_sense_are_refused(said: str, words: tuple[str, ...], tmp_path: Path) -> None:
    assert refused(tmp_path, "stage=devices", *words) == said


@pytest.mark.wide
def test_the_ceilings_as_they_ship(tmp_path: Path) -> None:
    """Everything is measured or named, recorded, kept, and shown by the next command."""
    cache = str(tmp_path / "cache")
    run = done(tmp_path, "stage=devices", "stage.measure=true", "tracking=none", PIPELINE_CACHE=cache)
    result = read_result(run)
    assert result is not None
    metrics, said = {one.name: one for one in result.metrics}, dict(result.table)
    for name in ("fma/float32", "fma/float64", "copy", "scale", "add", "triad"):
        assert f"cpu/probe/{name}" in metrics
    for framework in ("torch", "tensorflow", "jax"):
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            for what in ("product", "convolution"):
                name = f"cpu/{framework}/{what}/{dtype}"
                assert (name in metrics) != (name in said)
        assert metrics[f"cpu/{framework}/product/float32"].value > 1
        assert metrics[f"cpu/{framework}/launch"].value < 0.01
    if metrics["cpu/probe/cores"].value > 95:  # else others at work have slowed either
        assert metrics["cpu/numpy/product/float64"].value < 1.15 * metrics["cpu/probe/fma/float64"].value
    assert metrics["cpu/paths/pipe/bandwidth"].value > 0
    with (run / "artifacts/tables/samples.csv").open() as file:
        assert {row["name"] for row in csv.DictReader(file)} == metrics.keys() - set(not_ceilings(metrics))
    receipt = json.loads((run / "receipt.json").read_text())
    assert receipt["ceilings"]["seen"]["cpu/torch/product/float64"] == "float64 on cpu"
    assert receipt["ceilings"]["versions"]["torch"]
    shown = pipeline(tmp_path, "stage=devices", PIPELINE_CACHE=cache).stdout
    assert "cpu · torch" in shown and "product float32" in shown and "ceilings" in shown


def not_ceilings(names: Any) -> list[str]:
    return [name for name in names if name == "gpus" or name.startswith(("precisions/", "ceilings/"))]


@pytest.mark.gpu
@pytest.mark.skipif(not gpus(), reason="no NVIDIA GPU on this machine")
def test_the_ceilings_of_a_gpu(tmp_path: Path) -> None:
    """Those of the frameworks that can use it, and of the paths to it."""
    words = ("stage=devices", "stage.measure=true", "stage.rounds=2", "tracking=none")
    run = done(tmp_path, *words, PIPELINE_CACHE=str(tmp_path), CUDA_VISIBLE_DEVICES="0")
    result = read_result(run)
    assert result is not None
    found = {one.name: one.value for one in result.metrics}
    assert found["gpu:0/torch/product/float16"] > found["cpu/torch/product/float16"]
    assert found["gpu:0/paths/on the device/bandwidth"] > found["gpu:0/paths/pinned to device/bandwidth"]
    assert found["gpu:0/paths/pageable to device/latency"] < 0.001
