"""The bench in tables, in numbers and in a CSV of every sample."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.errors import plural
from pipeline.kernels.gemm import Gemm
from pipeline.kernels.timing import Times, median_rate, rates
from pipeline.kernels.verify import refusal_of
from pipeline.report.csv_file import csv_file
from pipeline.report.table import digits, percent, small
from pipeline.report.table import size as in_bytes
from pipeline.runs.result import Metric, Table, count
from pipeline.stages.wmma.found import CORE_TYPE, Found

GIGA = 1e9
NOT_MEASURED = "not measured"
NOT_KEPT = "-"
RIGHT = "right/problems"  # the metric: all that the kernels that are right were verified on


def timed(bench: Found) -> tuple[Table, ...]:
    """One table for each size at which one was timed: the kernels, in the order of the ladder."""
    return tuple(_timed(bench, gemm) for gemm in bench.plan.problems if bench.times[gemm])


def _timed(bench: Found, gemm: Gemm) -> Table:
    columns = ["kernel", "burst", "sustained", "range", "n"]
    columns += [f"of {bench.yardstick}"] if bench.yardstick else []
    columns += ["of peak"] if (has_peak := any(bench.peak(name) for name in bench.times[gemm])) else []
    on_gpu = any(bench.processor(name) == "gpu" for name in bench.times[gemm])
    columns += ["of datasheet", "MHz", "W", "occupancy"] if on_gpu else []
    rows: list[tuple[str, ...]] = []
    for name, times in bench.times[gemm].items():
        sustained = rates(gemm.flop, times.sustained)
        row = [name, *(digits(median_rate(gemm.flop, each)) for each in (times.burst, times.sustained))]
        row += [f"{digits(min(sustained))} to {digits(max(sustained))}", f"{len(sustained)} × {times.calls}"]
        row += [_share(bench, gemm, name)] if bench.yardstick else []
        row += [percent(of_peak(bench, gemm, name))] if has_peak else []
        row += _of_card(bench, gemm, name) if on_gpu else []
        rows.append((*row, small(bench.errors[gemm, name].relative)))
    work = f"{digits(gemm.flop / GIGA)} GFLOP, at least {in_bytes(gemm.traffic)}, {digits(gemm.intensity)} FLOP/byte"
    return Table(f"{gemm}: {work}; GFLOP/s{_cards(bench, gemm)}", (*columns, "error"), tuple(rows))


def _share(bench: Found, gemm: Gemm, name: str) -> str:
    """A kernel's share of the yardstick as the metrics have it; a dash where it is uncertain and they have none."""
    return NOT_KEPT if bench.is_uncertain(name) else percent(bench.share(gemm, name))


def _of_card(bench: Found, gemm: Gemm, name: str) -> list[str]:
    """Share of the datasheet's rate, medians of clock and power beside the samples, occupancy; of a GPU's kernel."""
    if bench.processor(name) != "gpu":
        return [""] * 4
    states = [one for one in bench.times[gemm][name].states if one is not None]
    occupied = bench.facts.get(name, {}).get("occupancy")
    return [
        percent(bench.of_datasheet(gemm, name)) or NOT_MEASURED,
        _median([one.clock_mhz for one in states]),
        _median([one.power_w for one in states]),
        percent(occupied) if isinstance(occupied, float) else NOT_MEASURED,
    ]


def _median(values: Sequence[float | None]) -> str:
    """Of those that were measured."""
    known = [one for one in values if one is not None]
    return f"{statistics.median(known):,.0f}" if known else NOT_MEASURED


def _cards(bench: Found, gemm: Gemm) -> str:
    """The GPU that kernels ran on, by their own account."""
    found = dict.fromkeys(str(bench.facts[name]["card"]) for name in bench.times[gemm] if "card" in bench.facts[name])
    return f", on {' and '.join(found)}" if found else ""


def line(bench: Found, gemm: Gemm) -> str:
    """A size in one line, as soon as it is measured."""
    rates_of = {name: bench.rate(gemm, name, sustained=True) for name in bench.times[gemm]}
    shown = ", ".join(f"{name} {digits(rate)}" for name, rate in rates_of.items() if rate is not None)
    return f"{gemm}: {shown} GFLOP/s" if shown else f"{gemm}: nothing to time"


def not_timed(bench: Found) -> list[tuple[str, str]]:
    """The kernels that were not timed, or not at a size, and why."""
    rows = []
    for kernel in bench.plan.kernels:
        verdict, absent = bench.verdicts.get(kernel.name), bench.absent.get(kernel.name)
        dtype = bench.plan.checked_in(kernel)
        where = f" in {dtype}" if dtype and dtype != bench.plan.dtype else ""
        if verdict is not None and verdict.fault:
            rows.append((kernel.name, f"WRONG{where}, so it was not timed: {verdict.fault}"))
        elif verdict is not None and absent:
            timed = "timed no further" if kernel.name in bench.shown else "not timed"
            rows.append((kernel.name, f"right on {verdict.n} problems{where}; {timed}: {absent}"))
        elif absent:
            without = "not verified without a GPU; " if kernel.processor == "gpu" and bench.plan.taken(kernel) else ""
            rows.append((kernel.name, f"{without}not run: {absent}"))
    return rows + _not_run(bench)


def _not_run(bench: Found) -> list[tuple[str, str]]:
    """A row for all sizes that a kernel refuses for one reason, and one for those that take too long."""
    kernels = {kernel.name: kernel for kernel in bench.plan.kernels}
    found: dict[tuple[str, str | None], list[tuple[Gemm, str]]] = {}
    for (gemm, name), why in bench.skipped.items():
        found.setdefault((name, refusal_of(kernels[name], gemm)), []).append((gemm, why))
    rows = []
    for (name, _), sizes in found.items():
        (gemm, why), *larger = sorted(sizes, key=lambda one: one[0].flop)
        beside = f", nor at {plural(len(larger), 'larger size')}" if larger else ""
        rows.append((name, f"not run at {gemm}{beside}: {why}"))
    return rows


def summary(bench: Found) -> tuple[tuple[str, str], ...]:
    """The machine's ceilings, and what was verified."""
    rows = [("threads", _threads(bench))]
    for name, samples, what in _ceilings(bench):
        rows.append((name, f"{highest([one / GIGA for one in samples])} {what}"))
    any_timed = any(bench.times.values())
    if any_timed:  # the columns of the tables
        rows.append(("n", "samples × products, of which each sustained rate is the mean"))
        rows.append(("error", "norm of the difference from float64 over the norm of D"))
    if bench.ceilings and not bench.others and _fewer_threads(bench):
        rows.append(("of peak", f"of the FMA peak of all {bench.plan.cores} threads, also where a kernel has fewer"))
    right, before = _right(bench), "; what is timed, before that" if any_timed else ""
    rows.append(
        ("verified", f"{plural(len(right), 'kernel')}, {plural(sum(right), 'problem')}, each run twice{before}")
    )
    fastest = best(bench)
    if fastest:
        gemm, name = fastest
        share = bench.share(gemm, name)
        of = f", {percent(share)} of {bench.yardstick}" if share and name != bench.yardstick else ""
        if bench.is_uncertain(name):
            theirs = bench.rate(gemm, bench.yardstick, sustained=True) if bench.yardstick else None
            beside = f", {bench.yardstick} {digits(theirs)}" if theirs and name != bench.yardstick else ""
            why = "other processes are at work" if bench.others else f"{CORE_TYPE} is set"
            of = f"{beside}; uncertain, {why}: no share of it is kept"
        rate = digits(bench.rate(gemm, name, sustained=True) or 0)
        beside_it = f" beside {bench.yardstick}" if bench.yardstick not in (None, name) else ""
        rows.append((f"fastest{beside_it}", f"{name}: {rate} GFLOP/s at {gemm}{of}"))
    above = bench.above_yardstick()
    if above:
        rows.append((f"above {bench.yardstick}", "; ".join(_above(bench, *one, share) for one, share in above.items())))
    return tuple(rows)


def _threads(bench: Found) -> str:
    """Of the CPU's kernels and of its ceilings; and which kernels that were timed have fewer."""
    of = _fewer_threads(bench)
    found = [
        f"{fewer} for {', '.join(name for name, each in of.items() if each == fewer)}"
        for fewer in sorted(set(of.values()))
    ]
    return "; ".join((str(bench.plan.cores), *found))


def _fewer_threads(bench: Found) -> dict[str, int]:
    """Of the kernels that were timed on fewer threads than the ceilings."""
    timed = {name for found in bench.times.values() for name in found}
    of = {name: facts["threads"] for name, facts in bench.facts.items() if name in timed and "threads" in facts}
    return {name: each for name, each in of.items() if isinstance(each, int) and each < bench.plan.cores}


def _ceilings(bench: Found) -> Iterator[tuple[str, Sequence[float], str]]:
    """Each ceiling's name, its samples and what they are."""
    if bench.ceilings:
        yield "FMA peak", bench.ceilings.flop_per_s, "GFLOP/s on registers"
        yield "memory", bench.ceilings.bytes_per_s, "GB/s (triad)"
    if roof := bench.card_ceilings:
        for word, rates_of in roof.flop_per_s.items():
            slower = f", which are slower than {better}: no limit of it" if (better := roof.unprobed) else ""
            yield f"the GPU's {word} peak", rates_of, f"GFLOP/s ({roof.what[word]}{slower})"
        yield "the GPU's memory", roof.bytes_per_s, "GB/s (triad)"


def _above(bench: Found, gemm: Gemm, name: str, share: float) -> str:
    """A share above 1 beside the yardstick's own spread, which says how far it can be believed."""
    theirs = rates(gemm.flop, bench.times[gemm][str(bench.yardstick)].sustained)
    return f"{name} at {gemm}, {percent(share)} of a median between {digits(min(theirs))} and {digits(max(theirs))}"


def _right(bench: Found) -> list[int]:
    """Problems that each kernel that is right was verified on."""
    return [verdict.n for verdict in bench.verdicts.values() if verdict.fault is None]


def metrics(bench: Found) -> tuple[Metric, ...]:
    """Per size and kernel: rates, shares and errors; the ceilings; the best."""
    found = [metric for gemm in bench.times for metric in _of_size(bench, gemm)]
    found += [count(f"verified/{name}", verdict.n, "problems") for name, verdict in bench.verdicts.items()]
    found.append(count(RIGHT, sum(_right(bench))))
    if bench.ceilings:
        peak, byte_rate = bench.ceilings.peak, bench.ceilings.memory
        found.append(Metric("ceiling/fma", peak / GIGA, "GFLOP/s", "time", "max"))
        found.append(Metric("ceiling/memory", byte_rate / GIGA, "GB/s", "time", "max"))
    if bench.card_ceilings:
        for word, rates_of in bench.card_ceilings.flop_per_s.items():
            found.append(Metric(f"ceiling/gpu/{word}", max(rates_of) / GIGA, "GFLOP/s", "time", "max"))
        found.append(Metric("ceiling/gpu/memory", bench.card_ceilings.memory / GIGA, "GB/s", "time", "max"))
    fastest = best(bench)
    if fastest:
        gemm, name = fastest
        rate, share = bench.rate(gemm, name, sustained=True), bench.share(gemm, name)
        found += [Metric("best/sustained", rate, "GFLOP/s", "time", "max")] if rate else []
        found += [Metric("best/share", share, "", "time", "max")] if share and not bench.is_uncertain(name) else []
    return tuple(found)


def _of_size(bench: Found, gemm: Gemm) -> Iterator[Metric]:
    key = label(gemm)
    yield count(f"{key}/intensity", gemm.intensity, "FLOP/byte")
    for name in bench.times[gemm]:
        for kind, sustained in (("burst", False), ("sustained", True)):
            rate = bench.rate(gemm, name, sustained=sustained)
            if rate is not None:
                yield Metric(f"{key}/{name}/{kind}", rate, "GFLOP/s", "time", "max")
        shares = {
            "share": None if bench.is_uncertain(name) else bench.share(gemm, name),
            "of_peak": of_peak(bench, gemm, name),
            "of_datasheet": bench.of_datasheet(gemm, name),
        }
        for what, share in shares.items():
            if share is not None:
                yield Metric(f"{key}/{name}/{what}", share, "", "time", "max")
        yield Metric(f"{key}/{name}/relative_error", bench.errors[gemm, name].relative, direction="min")


def write_csv(path: Path, bench: Found) -> None:
    """Every sample, in seconds."""
    columns = ("kernel", "set", "sample", "calls", "burst_s", "sustained_s", "mhz", "w")
    with csv_file(path) as writer:
        writer.writerow(("m", "n", "k", "dtype", "order", *columns))
        for which, found in (("sizes", bench.times), ("around", bench.times_around)):
            for gemm, kernels in found.items():
                head = (gemm.m, gemm.n, gemm.k, gemm.dtype, gemm.order)
                writer.writerows(
                    (*head, name, which, *each) for name, times in kernels.items() for each in _each(times)
                )


def _each(times: Times) -> Iterator[tuple[object, ...]]:
    """Number, calls, seconds, clock and power of each sample."""
    for number, pair in enumerate(zip(times.burst, times.sustained, strict=True)):
        at = times.states[number] if number < len(times.states) else None
        yield number, times.calls, *pair, *(("", "") if at is None else (at.clock_mhz, at.power_w))


def best(bench: Found) -> tuple[Gemm, str] | None:
    """The largest size at which a kernel was timed, and the fastest there: the yardstick only where it was alone."""
    name = bench.fastest or bench.yardstick
    sizes = [gemm for gemm in bench.plan.problems if name in bench.times.get(gemm, {})]
    return (sizes[-1], name) if name and sizes else None


def of_peak(bench: Found, gemm: Gemm, name: str) -> float | None:
    """The sustained rate as a share of what the processor was measured to do where nothing has to be fetched."""
    rate, peak = bench.rate(gemm, name, sustained=True), bench.peak(name)
    return None if rate is None or peak is None else rate * GIGA / peak


def label(gemm: Gemm) -> str:
    """A size as a metric is named by it: `512x512x512`."""
    return f"{gemm.m}x{gemm.n}x{gemm.k}"


def highest(values: Sequence[float]) -> str:
    """The highest, and what else was measured."""
    return f"{digits(max(values))} (the highest of {len(values)}, median {digits(statistics.median(values))})"
