"""Settings of loaders in tables, in numbers and in a CSV of every sample."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from pipeline.backends.shared.load_bench import STEP_OF, Found, median_rate
from pipeline.backends.shared.load_parts import PARTS
from pipeline.report.csv_file import csv_file
from pipeline.report.table import percent
from pipeline.report.table import size as in_bytes
from pipeline.runs.result import Metric, Table, count, rate, seconds
from pipeline.stages.loading.bench import Bench
from pipeline.stages.loading.best import best, gain, plainest
from pipeline.stages.loading.limit import moved_bytes

GIGA = 1e9
REST = "rest"


def shown(bench: Bench) -> tuple[Table, ...]:
    """The bench's tables, without those that have no row."""
    every = (*(of_source(bench, source) for source in bench.sources), of_parts(bench), of_best(bench))
    return tuple(one for one in every if one.rows)


def of_source(bench: Bench, source: str) -> Table:
    """The table of a source, a row for each framework's setting that was timed."""
    rows = []
    for (where, framework), found in bench.found.items():
        for one in found:
            samples = one.samples or one.final
            if where == source and samples:
                rates = [each.rate for each in samples]
                row = [framework, one.setting.beside(found[0].setting), thousands(median_rate(samples))]
                row += [thousands(min(rates)), thousands(max(rates)), str(len(rates))]
                row += [f"{1e3 * statistics.median(each.first_s for each in samples):.0f}"]
                row += [percent(statistics.median(each.waits for each in samples))]
                rows.append((*row, *([of_limit(bench, source, one)] if bench.limit else [])))
    columns = ("framework", "setting", "median", "least", "most", "n", "first", "waits")
    limit = ("of copying",) if bench.limit else ()
    return Table(f"{source}: {described(bench, source)}; thousands of images/s", (*columns, *limit), tuple(rows))


def described(bench: Bench, source: str) -> str:
    """How many examples a pass takes, of which shape, and where they lie."""
    stored = bench.sources[source]
    shape = "×".join(map(str, stored.x.shape[1:]))
    of = f"{stored.examples:,} examples {shape} a pass"
    if source == "files":
        return f"{of}, a PNG each, {in_bytes(stored.bytes)} in all"
    if source == "mapped":
        return f"{of}, from all over one file of {in_bytes(stored.bytes)} that is dropped from memory before each"
    return f"{of}, {in_bytes(stored.x[: stored.examples].nbytes)}"


def of_parts(bench: Bench) -> Table:
    """Where the time of the plainest setting goes."""
    rows = []
    for (source, framework), each in bench.parts.items():
        if not each:
            continue
        parts, examples = bench.parts_of((source, framework)), bench.sources[source].examples
        total = sum(parts.values())
        cells = []
        for part in (*PARTS, REST):
            took = parts.get(part)
            # a part of tf.data is the difference of two passes: below zero, they vary by more than it takes
            share = "uncertain" if took and took < 0 and part != REST else f"{100 * (took or 0) / total:.0f} %"
            cells.append("" if not took else f"{1e6 * took / examples:.1f} ({share})")
        rows.append((source, framework, *cells, f"{1e6 * total / examples:.1f}"))
    columns = ("source", "framework", *PARTS, REST, "total")
    of = f"medians of {bench.job.rounds}"
    return Table(f"microseconds an image, the plainest setting, one thread; {of}", columns, tuple(rows))


def of_best(bench: Bench) -> Table:
    """The fastest setting of each framework on each source, timed in turns with the plainest."""
    rows = []
    for (source, framework), found in bench.found.items():
        fastest, base = best(found), plainest(found)
        if fastest is None or base is None:
            continue
        over = gain(found)
        row = [source, framework, fastest.setting.beside(base.setting), thousands(median_rate(fastest.final))]
        said = "the plainest\nis the fastest" if over is None else str(over).replace(": ", ":\n")
        rows.append((*row, thousands(median_rate(base.final)), said, str(len(fastest.final))))
    columns = ("source", "framework", "the best", "rate", "plainest", "gain", "n")
    return Table("the best setting, in turns with the plainest; thousands of images/s", columns, tuple(rows))


def to_train(bench: Bench) -> Iterator[tuple[str, str]]:
    """What to add to the command of a training."""
    for (source, framework), found in bench.found.items():
        fastest = best(found)
        if fastest is not None and source != "files":  # which no dataset of ours reads again in each epoch
            over = gain(found)
            doubt = "" if over is None or over.distinguishable else f" (gain: {str(over).partition(':')[0]})"
            yield f"best, {source}", f"backend={framework} {fastest.setting.overrides}{doubt}"


def of_limit(bench: Bench, source: str, found: Found) -> str:
    """The rate as a share of that of copying; empty where batches are not made of the stored examples each time."""
    assert bench.limit is not None
    if found.setting.loader == "memory" or found.setting.keys.get("cache"):
        return ""
    return percent(median_rate(found.samples or found.final) / bench.limit.images_per_s(bench.sources[source].x))


def summary(bench: Bench, notes: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What was verified, what the columns are, and what was not measured and why."""
    varied = [one for one in bench.every if one.samples]
    combined = [one for one in bench.every if one.final and not one.samples]
    batches = sum(one.batches for one in (*varied, *combined))
    of = f"{len(varied)} of {len(bench.every) - len(combined)} settings"
    and_combined = f", and {len(combined)} of the best values together" if combined else ""
    yield "verified", f"{of}{and_combined}, to the bit, before they were timed: {batches:,} batches"
    plain = {framework: found[0].name for (_, framework), found in bench.found.items() if found}
    yield from ((f"plainest, {framework}", name) for framework, name in plain.items())
    yield from to_train(bench)
    step_ms = 1e3 * bench.job.step_s
    yield "first", "milliseconds until the first batch is there: the stream built, workers started, files opened"
    yield "waits", f"share of a training's time, if a step takes {step_ms:g} ms for {STEP_OF} images, off the CPU"
    yield from of_machine(bench)
    yield from notes
    for (source, framework), found in bench.found.items():
        for one in found:
            if one.fault:
                yield f"{source}, {framework}: {one.name}", f"WRONG, so it was not timed: {one.fault}"
    yield from bench.absent.items()
    for (source, framework), why in bench.ended.items():
        lost = "not taken apart" if (source, framework) in bench.found else "not measured"
        yield f"{source}, {framework}", f"{lost}: {why}"


def of_machine(bench: Bench) -> Iterator[tuple[str, str]]:
    """What memory allows, and how cold the mapped file was."""
    if bench.limit is not None and bench.sources:
        found, x = bench.limit, next(iter(bench.sources.values())).x
        threads = "one thread" if found.threads == 1 else f"{found.threads} threads"
        copied = f"{max(found.bytes_per_s) / GIGA:.1f} GB/s copied by {threads}"
        each = f"{moved_bytes(x):,} bytes an image, read as stored and written as float32"
        yield "copying, large arrays", f"{digits(found.images_per_s(x))} images/s: {copied}, {each}"
        if found.doubt:
            yield "copying in doubt", found.doubt
    cold = [one for found in bench.every for one in (*found.samples, *found.final) if one.before is not None]
    if cold:
        before, after = max(one.before or 0 for one in cold), max(one.after or 0 for one in cold)
        yield "mapped", f"at most {percent(before)} of the file was in memory before a pass, {percent(after)} after it"
        start = percent(statistics.median(min(one.first_s / one.seconds, 1.0) for one in cold))
        whole = "one pass: the order of all the file's rows drawn, the stream built, workers started"
        yield "a sample of mapped", f"{whole}; {start} of its time until the first batch, less of larger data"
    yield "cores", str(bench.job.cores)


def metrics(bench: Bench) -> Iterator[Metric]:
    """Of each setting its rate, its first batch and how long steps wait; of each best one its gain; the limit."""
    timed = [one for one in bench.every if one.samples or one.final]
    # Not those that were put together of the best values: which they are, time decides.
    yield count("verified", sum(bool(one.samples) for one in timed), "settings")
    if timed:
        # Of what was timed again in turns where anything was: the highest of many single looks flatters.
        again = [one.final for one in timed if one.final]
        yield rate("best_rate", max(map(median_rate, again or [one.samples for one in timed])), "images")
    if bench.limit is not None:
        yield Metric("limit/memory", max(bench.limit.bytes_per_s) / GIGA, "GB/s", "time", "max")
    for (source, framework), found in bench.found.items():
        for one in found:
            samples = one.samples or one.final
            if samples:
                name = f"{source}/{framework}/{one.name}"
                yield rate(f"{name}/rate", median_rate(samples), "images")
                yield seconds(f"{name}/first_batch", statistics.median(each.first_s for each in samples))
                yield Metric(f"{name}/waits", statistics.median(each.waits for each in samples), "", "time", "min")
        over = gain(found)
        if over is not None:
            yield Metric(f"{source}/{framework}/gain", over.value, "", "time", "max")
            for end, value in (("low", over.low), ("high", over.high)) if over.enough else ():
                yield Metric(f"{source}/{framework}/gain_{end}", value, "", "time", "max", role=end)  # type: ignore[arg-type]
    for (source, framework), each in bench.parts.items():
        if each:
            examples = bench.sources[source].examples
            for part, took in bench.parts_of((source, framework)).items():
                name = f"{source}/{framework}/part/{part.replace(' ', '_')}"
                yield seconds(name, took / examples)


def write_csv(path: Path, bench: Bench) -> None:
    """Every sample."""
    columns = ("first_s", "images", "seconds", "waits_s", "stepped_s", "before", "after")
    with csv_file(path) as writer:
        writer.writerow(("source", "framework", "setting", "turns", "sample", *columns))
        for (source, framework), found in bench.found.items():
            for one in found:
                for turns, samples in (("varied", one.samples), ("final", one.final)):
                    for number, each in enumerate(samples):
                        values = (getattr(each, name) for name in columns)
                        writer.writerow((source, framework, one.name, turns, number, *values))


def thousands(value: float) -> str:
    """A rate in thousands, three digits."""
    return digits(value / 1000)


def digits(value: float) -> str:
    """Three digits: no rate is known better."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
