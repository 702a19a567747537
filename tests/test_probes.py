"""What measures a GPU's ceilings: right on the CPU by the shim, built as promised, and shown beside the kernels."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mutants import Mutant, mutants

from pipeline.contracts.kernels import MachineCode
from pipeline.kernels import nvrtc, on_card, sass
from pipeline.kernels.cpu.cpu_naive import CpuNaive
from pipeline.kernels.cuda import ceilings as cuda_ceilings
from pipeline.kernels.cuda.built import built
from pipeline.kernels.cuda.ceilings import FACTOR, FOUR, LARGEST, SMALLEST, Ceilings, Y, Z, array_bytes
from pipeline.kernels.cuda.function import COMMON, FOLDER
from pipeline.kernels.cuda.naive import Naive
from pipeline.kernels.cuda.probes import (
    PROBES,
    ROUNDS,
    TRIAD,
    MultiplyAdds,
    OfWarpgroups,
    OnRegisters,
    Probe,
    room,
    unprobed,
    work,
)
from pipeline.kernels.cuda.source import placed
from pipeline.kernels.cuda.tiled import Tiled
from pipeline.kernels.shim.program import Array, Fault, Program, available
from pipeline.kernels.timing import Times
from pipeline.kernels.verify import Verdict
from pipeline.machine.device import Gpu, gpus
from pipeline.report.canvas import canvas
from pipeline.stages.wmma import figures, tables
from pipeline.stages.wmma.bench import Bench
from pipeline.stages.wmma.stage import Wmma

needs_shim = pytest.mark.skipif(not available(), reason="no g++")
needs_nvrtc = pytest.mark.skipif(nvrtc.missing_packages() is not None, reason="the extra `kernels` is not installed")
EACH = [(probe, dtype) for probe in PROBES for dtype in probe.architectures]
BLOCKS = 2


def launched(probe: Probe, dtype: str, rounds: int, program: Program | None = None, seed: int = 0) -> np.ndarray:
    """D of all teams, computed by the shim."""
    made, d = work(probe, dtype, seed), placed(room(probe, dtype, BLOCKS))
    (program or probe.program(dtype)).launch(
        (BLOCKS, 1, 1),
        probe.block,
        [
            *(Array(name, placed(one), one.size, 1, one.size) for name, one in (("A", made.a), ("B", made.b))),
            Array("D", d, d.size, 1, d.size, writable=True),
            np.int32(rounds),
        ],
        seed=seed,
    )
    return d


@needs_shim
@pytest.mark.parametrize(("probe", "dtype"), EACH, ids=lambda one: getattr(one, "word", one))
def test_a_probe_computes_as_many_products_as_it_counts(probe: Probe, dtype: str) -> None:
    made, d = work(probe, dtype, 3), launched(probe, dtype, 3, seed=3)
    assert made.fault(d, 3) is None
    assert "sums are wrong: that of team 0, row 0, column 0 is " in str(made.fault(d, 4))
    assert int(str(made.fault(d, 4)).split(" of ")[0]) > 0.99 * d.size
    m, n, k = probe.shape(dtype)
    assert probe.flop(dtype, BLOCKS, 3) == 2 * (d.size // (m * n)) * m * n * k * 3
    d[-1] = room(probe, dtype, BLOCKS)[-1]  # a sum that was not written
    assert str(made.fault(d, 3)).startswith("1 of ")


@pytest.mark.parametrize(("probe", "dtype"), EACH, ids=lambda one: getattr(one, "word", one))
def test_a_hundredth_of_the_rounds_left_out_is_seen(probe: Probe, dtype: str) -> None:
    """And what a Tensor Core cuts off, half a unit of rounding of the sum in each round, is not taken for it."""
    made = work(probe, dtype)
    teams = np.array([made.once.T] * 2)
    fewer = (teams * (ROUNDS * 0.99)).astype(room(probe, dtype, 1).dtype)
    assert made.fault(fewer.ravel(), ROUNDS) is not None
    if dtype != "int8":
        cut = (teams * ROUNDS * (1 - ROUNDS * 2**-24)).astype(np.float32)
        assert made.fault(cut.ravel(), ROUNDS) is None


def test_sums_of_bytes_stay_below_what_an_integer_holds() -> None:
    assert ROUNDS * 16 * 128 * 128 < 2**31


@needs_shim
def test_the_triad_reads_two_arrays_and_writes_one() -> None:
    generator = np.random.default_rng(0)
    y, z = (placed(generator.uniform(-1, 1, 4 * 1000).astype(np.float32)) for _ in range(2))
    x = placed(np.full(y.size, np.nan, np.float32))
    arrays = [
        Array(name, one, one.size, 1, one.size, writable=name == "x") for name, one in (("x", x), ("y", y), ("z", z))
    ]
    TRIAD.program("fp32").launch((2, 1, 1), TRIAD.block, [*arrays, np.float32(FACTOR), np.int32(1000)])
    np.testing.assert_allclose(x, y + np.float32(FACTOR) * z, atol=1e-6)
    assert len({Y, Z, Y + FACTOR * Z, FACTOR * Z}) > 2  # what leaves an array out gives another number


def test_the_triads_arrays_are_larger_than_the_cache_and_fit() -> None:
    assert array_bytes(50 << 20, 1 << 37) == SMALLEST  # four times the 50 MiB of an H200's L2 are less
    assert array_bytes(96 << 20, 1 << 37) == 4 * (96 << 20)
    assert array_bytes(1 << 30, 1 << 37) == LARGEST
    assert array_bytes(50 << 20, (1 << 30) + 8 * 5) == (1 << 27)  # of whole pieces of 16 bytes
    assert array_bytes(50 << 20, 1000) % FOUR == 0


def build(probe: Probe, dtype: str, architecture: int) -> MachineCode:
    """`machine_code` refuses what lacks its instructions, spills, or takes more registers than it may."""
    code = probe.machine_code(dtype, architecture)
    assert code is not None and code.spilled == 0
    return code


@needs_nvrtc
@pytest.mark.wide
def test_the_machine_code_multiplies_as_often_as_the_source_says() -> None:
    for dtype in ("fp16", "bf16"):
        found = sass.instructions(built(OfWarpgroups(), dtype, 90).cubin)
        assert found["HGMMA"] == 64 // 16
        assert found["WARPGROUP"] == 3  # a fence and the source's two waits: with a third, a round ends with none left
    once = (
        2 * 4 * 2
    )  # 2 × 4 tiles, of two instructions each (m16n8k16); the loop is unrolled, and what is left follows it
    assert build(OnRegisters(), "fp16", 90).instructions["HMMA"] % once == 0
    assert build(MultiplyAdds(), "fp32", 90).instructions["FFMA"] % 32 == 0
    assert OfWarpgroups().machine_code("fp16", 100) is None


@needs_nvrtc
@pytest.mark.wide
@pytest.mark.parametrize(("probe", "dtype"), EACH, ids=lambda one: getattr(one, "word", one))
def test_every_build_keeps_within_its_registers(probe: Probe, dtype: str) -> None:
    for architecture in (75, 80, 86, 89, 90, 100, 120):
        if probe.compiles_for(dtype, architecture):
            assert build(probe, dtype, architecture).registers <= 65536 // (probe.blocks * probe.block[0])
    assert build(TRIAD, "fp32", 90).registers <= TRIAD.registers  # type: ignore[arg-type]


@needs_shim
@pytest.mark.wide
def test_a_probe_without_its_barrier_or_waits_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = OfWarpgroups()
    probe.program("fp16")  # the shim itself, into the usual cache
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    for name in probe.sources:
        shutil.copy(FOLDER / name, tmp_path / name)
    sites = mutants(FOLDER / "probe_wgmma.cu")
    survivors = [mutant.what for mutant in sites if caught(probe, mutant, tmp_path) is None]
    assert len(sites) == 6
    # Nothing is fetched into what the products of the round before still read, so that nobody has to wait for them.
    assert survivors == ["wgmma_wait<1>();"]


def caught(probe: Probe, mutant: Mutant, folder: Path) -> str | None:
    """By which message a mutant is found out."""
    (folder / mutant.file).write_text(mutant.text)
    program = probe.program("fp16", folder / mutant.file)
    for seed in range(3):
        try:
            fault = work(probe, "fp16", seed).fault(launched(probe, "fp16", 3, program, seed), 3)
        except Fault as error:
            return str(error)
        if fault:
            return fault
    return None


CEILINGS = Ceilings(
    flop_per_s={"mma": (6.0e14, 6.2e14), "wgmma": (9.0e14, 8.0e14)},
    bytes_per_s=(4.1e12, 4.0e12),
    what={"mma": "products of warps, on registers", "wgmma": "products of warpgroups, from shared memory"},
    facts={},
)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """As if naive had run on an H200 at a ninth of the higher ceiling."""
    monkeypatch.setattr(on_card, "gpus", lambda: (Gpu(0, "NVIDIA H200", 1 << 37, (9, 0)),))
    monkeypatch.setattr(Naive, "missing", lambda _: None)
    made = Bench(Wmma(kernels=(Naive(),), sizes=((64, 64, 64),), dtype="fp16").plan(0), None)  # type: ignore[arg-type]
    (gemm,) = made.plan.problems
    made.verdicts["naive"] = made.errors[gemm, "naive"] = Verdict(1, 0.0, 0.0)
    seconds = [gemm.flop / 1e14] * 3
    made.facts["naive"], made.times[gemm]["naive"] = {}, Times(1, seconds, seconds, [None] * 3)
    return made


def test_a_gpus_kernels_are_shown_as_a_share_of_its_ceiling(bench: Bench) -> None:
    assert "of peak" not in tables.timed(bench)[0].columns
    bench.card_ceilings = CEILINGS
    (table,) = tables.timed(bench)
    assert table.rows[0][table.columns.index("of peak")] == "11.1 %"
    found = {one.name: one.value for one in tables.metrics(bench)}
    assert found["64x64x64/naive/of_peak"] == pytest.approx(1 / 9)
    assert {name: value for name, value in found.items() if name.startswith("ceiling/")} == {
        "ceiling/gpu/mma": 6.2e5,
        "ceiling/gpu/wgmma": 9e5,
        "ceiling/gpu/memory": 4100.0,
    }
    rows = dict(tables.summary(bench))
    assert "(the highest of 2" in rows["the GPU's wgmma peak"] and "from shared memory" in rows["the GPU's wgmma peak"]
    assert rows["the GPU's memory"].endswith("GB/s (triad)")


def test_a_memorys_ceiling_that_is_uncertain_is_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    bench.run = SimpleNamespace(note=notes.append)  # type: ignore[assignment]
    monkeypatch.setattr(cuda_ceilings, "measured", lambda _: replace(CEILINGS, doubt="an array is small"))
    bench.measure_ceilings()
    assert notes == ["the ceiling of the GPU's memory is uncertain: an array is small"]


def test_a_rate_of_slower_instructions_is_no_peak(bench: Bench, tmp_path: Path) -> None:
    """On Hopper a warpgroup multiplies faster than warps, and of tf32 we measure warps alone."""
    asked = [
        (dtype, architecture) for dtype in ("fp32", "fp16", "tf32", "int8") for architecture in (80, 90, 100, 103, 120)
    ]
    assert {one: faster for one in asked if (faster := unprobed(*one))} == {
        ("tf32", 90): "wgmma",
        ("int8", 90): "wgmma",
        **dict.fromkeys([("fp16", 100), ("fp16", 103), ("tf32", 103)], "tcgen05"),
        ("tf32", 100): "tcgen05",
        ("int8", 100): "tcgen05",
    }
    flop_per_s = {"mma": CEILINGS.flop_per_s["mma"]}
    bench.card_ceilings = replace(CEILINGS, flop_per_s=flop_per_s, unprobed=unprobed("tf32", 90))
    assert "of peak" not in tables.timed(bench)[0].columns
    found = {one.name for one in tables.metrics(bench)}
    assert "ceiling/gpu/mma" in found and "64x64x64/naive/of_peak" not in found
    shown = dict(tables.summary(bench))["the GPU's mma peak"]
    assert shown.endswith("(products of warps, on registers, which are slower than wgmma: no limit of it)")
    here: Any = SimpleNamespace(artifact=lambda name: tmp_path / name)
    figures.draw(here, bench)
    assert not list(tmp_path.rglob("*roofline*"))


def test_the_roofline_of_a_gpu_is_its_own(bench: Bench, tmp_path: Path) -> None:
    class Here:
        def artifact(self, name: str) -> Path:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            return tmp_path / name

    here: Any = Here()
    figures.draw(here, bench)
    assert not list(tmp_path.rglob("*roofline*"))
    bench.card_ceilings = CEILINGS
    figures.draw(here, bench)
    assert [one.name for one in tmp_path.rglob("*roofline*")] == ["roofline_gpu.png"]


def test_the_ladder_of_a_gpu_is_its_own(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cpu_naive takes every dtype, and has a rung too: it stood as the first of the GPU's."""
    monkeypatch.setattr(Tiled, "missing", lambda _: None)
    kernels = (CpuNaive(), Naive(), Tiled())
    both = Bench(Wmma(kernels=kernels, sizes=((64, 64, 64),), dtype="fp16").plan(0), None)  # type: ignore[arg-type]
    (gemm,), (naive,) = both.plan.problems, bench.times.values()
    for kernel in kernels:
        both.verdicts[kernel.name] = both.errors[gemm, kernel.name] = Verdict(1, 0.0, 0.0)
        both.facts[kernel.name], both.times[gemm][kernel.name] = {}, naive["naive"]
    drawn = canvas(7.0, 4.0)
    monkeypatch.setattr(figures, "canvas", lambda *_: drawn)
    here: Any = SimpleNamespace(artifact=lambda name: tmp_path / Path(name).name)
    figures.draw(here, both)
    assert [one.name for one in tmp_path.glob("*.png")] == ["ladder_gpu.png"]
    (axes,) = drawn.axes
    assert drawn.get_suptitle().endswith(", NVIDIA H200")
    assert [label.get_text().partition(":")[0] for label in axes.get_yticklabels()] == ["naive", "tiled"]


def test_the_programs_that_measure_count_in_the_stages_code() -> None:
    names = {one.name for one in Wmma().user_files}
    assert names >= {"probe.cpp", "probe.cu", "probe_wgmma.cu", "triad.cu", "ring.cuh", COMMON}


@pytest.mark.gpu
@needs_nvrtc
@pytest.mark.skipif(not gpus(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "tf32", "int8"])
def test_on_a_gpu_the_ceilings_are_measured_and_below_the_datasheet(dtype: str) -> None:
    from pipeline.kernels.cuda.ceilings import measured
    from pipeline.machine.known_gpus import known

    found, stated = measured(dtype), known(gpus()[0].name)
    highest = max(rate for rates in found.flop_per_s.values() for rate in rates)
    assert highest > 1e12 and found.memory > 1e10
    if stated is not None:
        rate = stated.tensor.get(dtype.upper(), stated.cuda.get(dtype.upper()))
        assert rate is None or 0.3 < highest / rate / 1e12 < 1.1
