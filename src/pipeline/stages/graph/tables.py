"""The forms and the ways in tables, in numbers and in a CSV of every sample."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.backends.shared.form_bench import TOLERANCE, Found
from pipeline.report.csv_file import csv_file
from pipeline.report.intervals import ENOUGH
from pipeline.report.table import size as in_bytes
from pipeline.report.table import small
from pipeline.runs.result import Metric, Table, count, seconds
from pipeline.stages.graph.amortised import (
    baseline,
    cost,
    crossover,
    distinguishable,
    few,
    ms,
    spread,
    steps,
    with_first,
)
from pipeline.stages.graph.bench import Bench


def shown(bench: Bench) -> tuple[Table, ...]:
    """The bench's tables, without those that have no row."""
    ends = sorted({min(bench.job.repetitions), max(bench.job.repetitions)})
    every = (of_forms(bench), of_calls(bench), of_cost(bench), of_dispatch(bench, ends), of_saved(bench))
    return tuple(one for one in every if one.rows)


def of_forms(bench: Bench) -> Table:
    """The net in each form: the time of a step, and how far its numbers are from NumPy's (row E7)."""
    rows, n = [], bench.job.form_steps
    for one in bench.forms:
        if one.samples:
            times = steps(one, n)
            row = (one.name, *spread(times), str(len(times)), *apart(one.losses, one.weights))
            rows.append((*row, str(one.dtype), str(one.device)))
    columns = ("form", "ms/step", "range", "n", "losses", "weights", "dtype", "device")
    return Table(f"one training in every form; a sample is {n} steps", columns, tuple(rows))


def of_calls(bench: Bench) -> Table:
    """The first two calls, which compile, and later steps (rows C3, C4)."""
    rows, most = [], max(bench.job.repetitions)
    for one in (each for found in bench.ways.values() for each in found if each.samples):
        times = steps(one, most)
        row = (one.name, first_of(one.first), first_of(one.second), *spread(times))
        rows.append((*row, str(len(one.first)), str(len(times))))
    columns = ("way", "first call", "second", "later", "range", "n first", "n later")
    return Table(f"milliseconds of a step: the first, the second, and one among {most:,}", columns, tuple(rows))


def of_cost(bench: Bench) -> Table:
    """A step among several, the first two of which compile, and the crossover (row E8)."""
    repetitions = bench.job.repetitions
    rows = [
        (one.name, *(ms(with_first(one, n)) if n in one.samples else "" for n in repetitions), said(found, one))
        for found in bench.ways.values()
        for one in found
        if one.samples
    ]
    columns = ("way", *(f"of {n:,}" for n in repetitions), "quicker from")
    return Table("milliseconds a step, by the number of steps, the first two calls included", columns, tuple(rows))


def of_kinds(bench: Bench) -> Table:
    """What each form is written with, and how each way runs a step."""
    return Table("forms and ways", ("name", "how"), tuple((one.name, one.how) for one in bench.every))


def of_dispatch(bench: Bench, numbers: Sequence[int]) -> Table:
    """How long the caller is held up by launching steps, and how long it then waits for them (row C3)."""
    rows = []
    for found in bench.ways.values():
        for one in (each for each in found if each.samples):
            for n in (each for each in numbers if each in one.samples):
                launch, wait = (statistics.median(each) for each in zip(*one.samples[n], strict=True))
                total = statistics.median(launch + wait for launch, wait in one.samples[n])
                part = f"{100 * launch / total:.0f} %"
                rows.append((one.name, f"{n:,}", ms(launch), ms(wait), ms(total), part, str(len(one.samples[n]))))
    columns = ("way", "steps", "launch", "wait", "total", "launch of total", "n")
    return Table("milliseconds until steps are launched, and until they are computed; medians", columns, tuple(rows))


def of_saved(bench: Bench) -> Table:
    """The graphs that were saved and run without this package (row E9)."""
    rows = [
        (name, one.kind, in_bytes(one.bytes), *apart(one.losses, one.weights))
        for name, one in bench.saved.items()
        if one.fault is None
    ]
    columns = ("way", "as", "size", "losses", "weights")
    return Table("saved, and run in a process without this package", columns, tuple(rows))


def summary(bench: Bench) -> Iterator[tuple[str, str]]:
    """What was verified, what the columns are, and what was not timed and why."""
    right, trained = sum(bool(one.samples) for one in bench.every), bench.job.reference.steps
    yield "verified", f"{right} of {len(bench.every)}, by {trained:,} steps against NumPy's, before they were timed"
    yield "losses, weights", f"largest difference, relative to the first loss and to the norm; at most {TOLERANCE:g}"
    yield "first call, second", "of a process that made no other, its caches of compiled programs empty"
    yield "quicker from", "the number of steps from which on all of them, the first included, take less than eager ones"
    yield "cores", str(bench.job.cores)
    for one in bench.every:
        if one.fault:
            yield one.name, f"WRONG, so it was not timed: {one.fault}"
        elif one.missing:
            yield one.name, f"not run: needs {one.missing}"
        elif one.unsaved:
            yield one.name, f"not saved: {one.unsaved}"
    yield from bench.absent.items()
    for name, why in bench.ended.items():
        yield name, f"its process {why}"


def metrics(bench: Bench) -> Iterator[Metric]:
    """Of each form and way: its times, and its differences; of each way the crossover, where there is one."""
    right = [one for one in bench.every if one.samples and one.weights is not None]
    if right:
        yield Metric(
            "largest_difference", max(max(one.losses or 0, one.weights or 0) for one in right), direction="min"
        )
    yield count("verified", len(right), "forms")
    for one in right:
        yield Metric(f"{one.name}/losses_difference", one.losses or 0, direction="min")
        yield Metric(f"{one.name}/weights_difference", one.weights or 0, direction="min")
        for n in one.samples:
            yield seconds(f"{one.name}/{n}/step", statistics.median(steps(one, n)))
    for found in bench.ways.values():
        for one in (each for each in found if each.samples):
            yield seconds(f"{one.name}/first_call", statistics.median(one.first))
            yield seconds(f"{one.name}/second_call", statistics.median(one.second))
            for n, pairs in one.samples.items():
                yield seconds(f"{one.name}/{n}/launch", statistics.median(launch for launch, _ in pairs) / n)
                yield count(f"{one.name}/{n}/samples", len(pairs), "samples")
            at = crossed(found, one)
            if at is not None:
                yield Metric(f"{one.name}/quicker_from", at, "steps", "time", "min")
    for name, read in bench.saved.items():
        if read.weights is not None:
            yield Metric(f"{name}/saved/weights_difference", read.weights, direction="min")


def write_csv(path: Path, bench: Bench) -> None:
    """Every sample, in seconds."""
    with csv_file(path) as writer:
        writer.writerow(("name", "steps", "sample", "launch_s", "wait_s"))
        for one in bench.every:
            for call, times in (("first call", one.first), ("second call", one.second)):
                for number, each in enumerate(times):
                    writer.writerow((one.name, call, number, each, 0))
            for n, pairs in one.samples.items():
                for number, (launch, wait) in enumerate(pairs):
                    writer.writerow((one.name, n, number, launch, wait))


def crossed(found: Sequence[Found], one: Found) -> int | None:
    """The crossover of a way against its framework's eager one; None where their later steps do not clearly differ."""
    eager = baseline(found)
    ours, theirs = cost(one), cost(eager) if eager else None
    if eager is None or ours is None or theirs is None or one.eager or not distinguishable(eager, one):
        return None
    return crossover(theirs, ours)


def said(found: Sequence[Found], one: Found) -> str:
    """The same in words."""
    eager = baseline(found)
    if one.eager or eager is None:
        return ""
    if few(eager, one):
        return f"unknown: fewer than {ENOUGH} samples"
    if not distinguishable(eager, one):
        return "not distinguishable"
    at = crossed(found, one)
    return "never" if at is None else f"step {at:,}"


def first_of(times: Sequence[float]) -> str:
    """The median, and the range where there are several."""
    median, between = spread(times)
    return f"{median} ({between})" if len(times) > 1 else median


def apart(*differences: float | None) -> tuple[str, ...]:
    """Differences as cells of a table, to two digits."""
    return tuple(map(small, differences))
