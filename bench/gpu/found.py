"""What a part has found, read from the folder that its command ran in: its runs, or pytest's output.

A part that was stopped has left some of its runs: what these have found counts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import at_least, at_most, not_measured, row, with_range
from bench.table import TO_REACH
from pipeline.kernels import timing
from pipeline.kernels.named import every
from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import run_folders
from pipeline.runs.records import read_config, read_metrics
from pipeline.runs.result import Metric, metrics_of, training_rate
from pipeline.spec import build
from pipeline.stages.wmma.stage import Wmma
from pipeline.stages.wmma.tables import label

Row = dict[str, Any]
LOG, SAMPLES = "output.log", "artifacts/tables/samples.csv"
BASE = "fp32"
LIMIT = 1e9  # bytes: of the part that trains within device.memory_limit=1GB
ON_CARD = "ceiling/gpu/"
HOPPER, CAPABILITY = "sm_90", "9.0"  # as kernels are built for, and as the driver says
REACH = {"tuned": 0.55, "triton": 0.82, "triton_tma": 0.82, "wgmma_persistent": 0.95}  # of cuBLAS
SHARE, SHARE_AIMED_AT = "model_flop_utilization", 0.45  # of experiment=gpt_gpu
BITS, BITS_AT_MOST = "test/bits_per_byte", 2.1
REACHED_AT = ("4096x4096x4096", "6144x6144x6144", "8192x8192x8192")
RATE = re.compile(r"epoch/(\w+)_per_s")
ENDED = "PASSED|FAILED|ERROR|SKIPPED"
RESULT = re.compile(rf"^(tests/\S+::.+?) ({ENDED})\b", re.MULTILINE)
BY_WORKERS = re.compile(rf"^\[gw\d+\] \[ *\d+%\] ({ENDED}) (tests/\S+::.+?) *$", re.MULTILINE)  # pytest-xdist's


@dataclass(frozen=True)
class Run:
    """A run that has a result."""

    receipt: Mapping[str, Any]
    config: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    folder: Path

    def rate(self, what: str) -> Row:
        """Its training's rate."""
        seen = self.receipt["training_rate"]
        return {"what": what, **{name: seen[name] for name in ("unit", "median", "min", "max", "n")}}

    def value(self, what: str, metric: str) -> list[Row]:
        """One of its metrics; no row where it was not measured."""
        one = self.metrics.get(metric)
        return [] if one is None else [row(what, [one.value], one.unit)]


def runs(folder: Path) -> list[Run]:
    """The runs of a part that have a result, without the grid's or the ladder's."""
    every = [
        Run(read_json(path / "receipt.json"), read_config(path), metrics, path)
        for path in run_folders(folder / "runs")
        if (metrics := metrics_of(path))
    ]
    return [run for run in every if not (run.folder / "cells").exists()]


def nothing(_: Path) -> list[Row]:
    """Of a part that passes or fails, and measures nothing."""
    return []


def precisions(folder: Path) -> list[Row]:
    """Rates by precision, as shares of float32's too; and of how many cells the receipt shows what was asked for."""
    cells = {run.receipt["precision"]["requested"]: run for run in runs(folder)}
    rates = {name: run.rate(name) for name, run in cells.items() if "training_rate" in run.receipt}
    right = sum(as_requested(run.receipt) for run in cells.values())
    asked = sum(read_config(path).get("cells", 0) for path in run_folders(folder / "runs"))  # the grid's
    return [
        *rates.values(),
        *(against(rates, name, BASE) for name in rates if name != BASE and BASE in rates),
        *([at_least(row("receipts that show what was asked for", [right], f"of {asked}"), asked)] if cells else []),
    ]


def as_requested(receipt: Mapping[str, Any]) -> bool:
    """Whether a run had the precision and the device that were asked for, as far as its receipt knows."""
    return bool(receipt["precision"]["as_requested"] and receipt["device"]["as_requested"])


def against(rates: Mapping[str, Row], name: str, base: str) -> Row:
    """A ratio of two medians, of runs one after the other: from the lowest to the highest that their periods allow."""
    ratio = row(f"{name} / {base}", [rates[name]["median"] / rates[base]["median"]], "x")
    return with_range(ratio, rates, name, base)


def kernels(folder: Path) -> list[Row]:
    """Rates of each kernel at each size, by its samples, its share of the yardstick, and the fastest of ours.

    On a GPU those of the processor do not count, and one of the GPU has to have been timed.
    """
    paths = run_folders(folder / "runs")
    found = [metrics_of(path) for path in paths]
    on_gpu = any(map(is_on_gpu, paths))
    others = {one.name for one in every() if one.processor == "cpu"} if on_gpu else set()
    rates = {what: one for what, one in timed(paths).items() if kernel_of(what) not in others}
    shares = {
        name: one.value
        for metrics in found
        for name, one in metrics.items()
        if name.endswith("/share") and kernel_of(name) not in others
    }
    libraries = {one.name for one in every() if one.yardstick}
    rows = [*rates.values()]
    if on_gpu:
        ours = set(map(kernel_of, rates)) - libraries
        rows.append(at_least(row("our kernels of the GPU that were timed", [len(ours)], ""), 1))
    yardsticks = {size_of(name): kernel_of(name) for name in shares if kernel_of(name) in libraries}
    rows += [
        of_library(f"{size_of(name)}/{kernel_of(name)}, share of {library}", name, share, rates, library)
        for name, share in shares.items()
        if kernel_of(name) not in libraries and (library := yardsticks.get(size_of(name)))
    ]
    rows += fastest(rows, libraries)
    rows += [one for path in paths for one in reached(path)]
    rows += ceilings(found)
    rows += [
        row(name, [one.value], one.unit)
        for metrics in found
        for name, one in metrics.items()
        if name.startswith("padding/")
    ]
    checked = {name: one for metrics in found for name, one in metrics.items() if name.startswith("verified/")}
    return rows + [row(name, [one.value], one.unit) for name, one in checked.items()]


def reached(path: Path) -> list[Row]:
    """Shares of the library that are to be reached on a Hopper card, of the sizes that they are for.

    One that is missing, since the kernel or the library was not timed, is missed. Of a run without a result none is.
    """
    receipt, found = read_json(path / "receipt.json"), metrics_of(path)
    if not found or not is_on_hopper(receipt) or receipt["precision"]["effective"] not in ("fp16", "bf16"):
        return []
    rates = timed([path])
    rows = []
    for name in to_reach(path):
        what, share = f"{TO_REACH}{name}", found.get(name)
        one = not_measured(what, "") if share is None else of_library(what, name, share.value, rates, "cublas")
        rows.append(at_least(one, REACH[kernel_of(name)]))
    return rows


def of_library(what: str, name: str, share: float, rates: Mapping[str, Row], library: str) -> Row:
    """The share that is the metric `name`, and how far it may be off by the samples of both kernels."""
    at = size_of(name)
    return with_range(row(what, [share], ""), rates, f"{at}/{kernel_of(name)}", f"{at}/{library}")


def to_reach(path: Path) -> list[str]:
    """The shares that a run has to have, by its config: of the kernels that have one to reach, at its sizes."""
    stage: Wmma = build(read_config(path)["stage"], "stage", (Wmma,))
    sizes = [size for size in map(label, stage.problems) if size in REACHED_AT]
    return [f"{size}/{one.name}/share" for size in sizes for one in stage.chosen if one.name in REACH]


def is_on_hopper(receipt: Mapping[str, Any]) -> bool:
    """By the card, or by what kernels were built for."""
    hardware = receipt.get("device", {}).get("hardware") or {}
    built = [one.get("architecture") for one in receipt.get("kernels", {}).values()]
    return hardware.get("compute_capability") == CAPABILITY or HOPPER in built


def ceilings(found: Sequence[Mapping[str, Metric]]) -> list[Row]:
    """What the GPU did where nothing had to be fetched, by the instruction that multiplied: the highest first."""
    rates = {
        name.removeprefix(ON_CARD): one.value / 1000
        for metrics in found
        for name, one in metrics.items()
        if name.startswith(ON_CARD) and one.unit == "GFLOP/s"
    }
    highest = sorted(rates, key=lambda word: -rates[word])
    named = ("highest ceiling", *["ceiling"] * len(rates))
    return [row(f"{name}: {word}", [rates[word]], "TFLOP/s") for name, word in zip(named, highest, strict=False)]


def timed(paths: Sequence[Path]) -> dict[str, Row]:
    """TFLOP/s of many products in a row in these runs, by size and kernel; only of those that were right afterwards.

    The median is the rate of the median time, as in the run's own result.
    """
    found: dict[tuple[str, int], list[float]] = {}
    for samples in (path / SAMPLES for path in paths if (path / SAMPLES).exists()):
        with samples.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                if line["set"] != "sizes":  # padding has its own metrics
                    continue
                flop = 2 * int(line["m"]) * int(line["n"]) * int(line["k"])
                what = f"{line['m']}x{line['n']}x{line['k']}/{line['kernel']}"
                found.setdefault((what, flop), []).append(float(line["sustained_s"]))
    return {
        what: row(what, [rate / 1000 for rate in timing.rates(flop, each)], "TFLOP/s")
        | {"median": timing.median_rate(flop, each) / 1000}
        for (what, flop), each in found.items()
    }


def size_of(name: str) -> str:
    """The size in the name of a metric or of a row."""
    return name.split("/")[0]


def kernel_of(name: str) -> str:
    """The kernel in the name of a metric or of a row."""
    return name.split("/")[1]


def is_on_gpu(path: Path) -> bool:
    """Whether a run was one of a GPU, by its receipt."""
    device: Mapping[str, str] = read_json(path / "receipt.json").get("device", {})
    return device.get("effective", "cpu") != "cpu"


def fastest(rows: Sequence[Row], libraries: set[str]) -> list[Row]:
    """The best of ours at the largest size, and its share where it has one."""
    ours = [one for one in rows if one["unit"] == "TFLOP/s" and kernel_of(one["what"]) not in libraries]
    if not ours:
        return []
    largest = max(ours, key=lambda one: int(size_of(one["what"]).split("x")[0]))
    best = max((one for one in ours if size_of(one["what"]) == size_of(largest["what"])), key=lambda one: one["median"])
    share = [one for one in rows if one["what"].startswith(f"{best['what']}, share of ")]
    return [{**one, "what": f"fastest: {one['what']}"} for one in (best, *share)]


def ladder(folder: Path) -> list[Row]:
    """Rates rung by rung, and the gain of all; of a ladder that was stopped the rates of the rungs that it finished."""
    found: dict[str, Metric] = {}
    for path in run_folders(folder / "runs"):
        found |= {name: one for name, one in metrics_of(path).items() if (path / "artifacts/ladder.csv").exists()}
    if not found:
        return rungs(folder)
    return [row(name, [one.value], one.unit) for name, one in found.items() if one.kind == "time" and one.unit != "s"]


def rungs(folder: Path) -> list[Row]:
    """Rates of the runs of single rungs, and the gain of each over the one before it, as the ladder names them."""
    ended = [run for run in runs(folder) if "training_rate" in run.receipt]
    names = [str(run.config["name"]).partition("-")[2] for run in ended]  # <stage>-<rung>
    rates = [run.rate(f"{name}/{training_rate(run.metrics).name}") for name, run in zip(names, ended, strict=True)]
    gains = [
        row(f"{name}/gain", [before.receipt["training_s"] / run.receipt["training_s"]], "")
        for name, before, run in zip(names[1:], ended, ended[1:], strict=False)
    ]
    return [*rates, *gains]


def training(folder: Path) -> list[Row]:
    """A training's rate, its share of a matmul's, and how good it became; of one that was stopped its epochs' rates.

    Of its grid the run with a compiled step counts; the rate of the other, as torch runs a step by itself, is beside
    it. On a GPU it has to be as good as its recipe says, and to have the share that is aimed at on a Hopper card.
    """
    by_step = {bool(run.config["backend"]["compile"]): run for run in runs(folder)}
    run, eager = by_step.get(True), by_step.get(False)
    rows = epochs(folder) if run is None else trained(run)
    if eager is not None and "training_rate" in eager.receipt:
        rows.append(eager.rate("eager"))
    rates = {one["what"]: one for one in rows}
    if run is not None and {"training", "eager"} <= set(rates):
        rows.append(against(rates, "training", "eager"))
    return rows


def trained(run: Run) -> list[Row]:
    """What a training that ended came to."""
    rows = [run.rate("training")] if "training_rate" in run.receipt else []
    share, bits = run.value("model FLOP utilization", SHARE), run.value("test/bits_per_byte", BITS)
    if is_on_hopper(run.receipt):
        share = [at_least(one, SHARE_AIMED_AT) for one in share]
    if is_on_gpu(run.folder):
        bits = [at_most(one, BITS_AT_MOST) for one in bits]
    seconds = [row(name, [run.receipt[name]], "s") for name in ("training_s", "compile_s") if name in run.receipt]
    return [*rows, *share, *bits, *seconds]


def epochs(folder: Path) -> list[Row]:
    """Rates of a compiled training without a result, by its journal: all but the first epoch's, as in a receipt."""
    found: dict[str, list[float]] = {}
    for path in run_folders(folder / "runs"):
        if not read_config(path).get("backend", {}).get("compile"):  # the grid, or its other run
            continue
        for record in read_metrics(path):
            for name, value in record.metrics.items():
                if (rate := RATE.fullmatch(name)) is not None:
                    found.setdefault(rate[1], []).append(value)
    return [row("training", values[1:], f"{unit}/s") for unit, values in found.items() if values[1:]]


def memory_limit(folder: Path) -> list[Row]:
    """The most that each backend took of the device, which must be within the limit."""
    return [
        at_most(row(f"{run.receipt['backend']}, peak", [peak], "bytes"), LIMIT)
        for run in runs(folder)
        if (peak := run.receipt["peak_memory"].get("device_bytes"))
    ]


def profiler(folder: Path) -> list[Row]:
    """What torch's profiler cost in its window."""
    return [one for run in runs(folder) for one in run.value("overhead of a profiled step", "profiler/overhead")]


def tests(folder: Path) -> list[Row]:
    """How many tests passed, failed and were skipped, also where not all of them came to run."""
    results = [*outcomes(folder).values()]
    counted = {name: results.count(name) for name in ("PASSED", "FAILED", "ERROR", "SKIPPED")}
    return [row(name.lower(), [n], "tests") for name, n in counted.items() if n]


def outcomes(folder: Path) -> dict[str, str]:
    """Every test that came to an end, and how it ended last, by pytest's output."""
    log = folder / LOG
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return {**dict(RESULT.findall(text)), **{name: how for how, name in BY_WORKERS.findall(text)}}


def passed(folder: Path) -> list[str]:
    """The tests that have passed."""
    return [name for name, result in outcomes(folder).items() if result == "PASSED"]
