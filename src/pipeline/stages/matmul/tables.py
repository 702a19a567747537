"""The products in tables, in numbers and in a CSV of every sample."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pipeline.report.csv_file import csv_file
from pipeline.report.intervals import of_median
from pipeline.report.table import digits, percent, small
from pipeline.report.table import size as in_bytes
from pipeline.runs.result import Metric, Table, count, memory, seconds
from pipeline.stages.matmul.bench import Bench, Plan, Side
from pipeline.stages.matmul.misplaced import Misplaced
from pipeline.stages.matmul.rates import Median, Rates, why_no_win, wins_from

NOT_MEASURED = "not measured"
NOT_KEPT = "-"


def shown(bench: Bench) -> tuple[Table, ...]:
    """The bench's tables, without those that have no row."""
    every = (*(of_dtype(bench, dtype) for dtype in bench.plan.dtypes), of_memory(bench), of_misplaced(bench))
    return tuple(one for one in every if one.rows)


def of_dtype(bench: Bench, dtype: str) -> Table:
    """The products of a dtype, by size; each rate and share with its interval."""
    timed = sorted(_timed(bench, dtype), key=lambda pair: pair[1].found.size)
    shares, copies = any(one.share for _, one in timed), any(one.with_copies for _, one in timed)
    columns = ["N", "by", "GFLOP/s", "95 %"]
    columns += ["of FMA", "95 %"] * shares + ["with copies"] * copies + ["error"]
    counts = {len(one.found.samples) for _, one in timed}
    columns += ["samples"] * (len(counts) > 1)
    rows = []
    for side, one in timed:
        row = [f"{one.found.size:,}", side.label, *_rate(one.rate)]
        row += _share(bench, one) * shares + [str(one.with_copies or "")] * copies
        row += [small(one.found.error), *[str(len(one.found.samples))] * (len(counts) > 1)]
        rows.append(tuple(row))
    return Table(f"{dtype}; {medians_of(one for _, one in timed)}", tuple(columns), tuple(rows))


def medians_of(timed: Iterable[Rates]) -> str:
    """What the rates are: `medians of 9 samples`, or of 3 to 9."""
    counts = {len(one.found.samples) for one in timed}
    of = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts, default=0))
    return f"medians of {of} sample{'s' * (of != '1')}"


def of_memory(bench: Bench) -> Table:
    """Memory in use around one product, and at most (row A4)."""
    rows = []
    for side, one in bench.memory.items():
        added = (in_bytes(each) for each in (one.with_operands - one.before, one.with_result - one.with_operands))
        rows.append((side.label, in_bytes(one.before), *added, in_bytes(one.peak)))
    return Table(_title_of_memory(bench), ("by", "before", "+ operands", "+ result", "peak"), tuple(rows))


def of_misplaced(bench: Bench) -> Table:
    """Milliseconds of a product with an operand on another device (row A2)."""
    rows = []
    for side, one in bench.misplaced.items():
        if one.in_place:
            at = Median.of(one.in_place)
            cells = (_against(one.as_written, at) if one.as_written else "refused", _against(one.copied, at))
            rows.append((side.label, f"{one.here}, {one.there}", _ms(at.median), *cells))
    dtype, size = bench.plan.placed or ("", 0)
    title = f"one operand on another device: milliseconds of a {dtype} product, N = {size:,}"
    return Table(title, ("by", "devices", "in place", "as written", "copied each time"), tuple(rows))


def summary(bench: Bench) -> Iterator[tuple[str, str]]:
    """What was verified, what the columns are, what was not measured and why, and where a GPU wins."""
    every = [one for found in bench.products.values() for one in found if one.missing is None or one.fault]
    right = sum(one.fault is None for one in every)
    yield "verified", f"{right} of {len(every)} products, against float64, before they were timed"
    yield "95 %", _of_interval(bench.plan)
    yield "of FMA", _of_ceilings(bench)
    yield from _above_ceiling(bench)
    yield "error", "norm of the difference from float64, relative to the result's"
    yield "cores", str(bench.plan.cores)
    if any(one.peak_of == "process" for one in bench.memory.values()):
        yield "peak", "since the process began: this system cannot reset it"
    for side, one in bench.misplaced.items():
        yield from _about_misplaced(side, one)
    for side, why in bench.unplaced.items():
        yield f"{side}, memory and misplaced", f"{NOT_MEASURED}: {why}"
    yield from _not_timed(bench)
    yield from _wins(bench)


def metrics(bench: Bench) -> Iterator[Metric]:
    """Of each product its rate, share and error; the ceilings; the memory and the times of the product looked at."""
    timed = list(bench.timed)
    if timed:
        best = max(one.rate.median for _, one in timed)
        yield Metric("best/rate", best, "GFLOP/s", "time", "max")
    shares = [share.median for _, one in timed if (share := _kept(bench, one))]
    if shares:
        yield Metric("best/share", max(shares), "", "time", "max")
    yield count("verified", len(timed), "products")
    for dtype in bench.plan.dtypes:
        ceilings = _ceilings(bench, dtype)
        if ceilings:
            yield Metric(f"ceiling/{dtype}", statistics.median(ceilings), "GFLOP/s", "time", "max")
    for side, one in timed:
        key = f"{side.key}/{one.found.problem.dtype}/{one.found.size}"
        yield from _with_ends(f"{key}/rate", one.rate, "GFLOP/s")
        yield from _with_ends(f"{key}/share", _kept(bench, one), "")
        yield from _with_ends(f"{key}/rate_with_copies", one.with_copies, "GFLOP/s")
        yield Metric(f"{key}/error", one.found.error or 0, direction="min")
    for side, used in bench.memory.items():
        yield memory(f"{side.key}/memory/operands", used.with_operands - used.before)
        yield memory(f"{side.key}/memory/result", used.with_result - used.with_operands)
        yield memory(f"{side.key}/memory/peak", used.peak)
    for side, placed in bench.misplaced.items():
        for name in ("in_place", "as_written", "copied"):
            if times := getattr(placed, name):
                yield seconds(f"{side.key}/misplaced/{name}", statistics.median(times))
    for side, dtype, copies, at in _crossovers(bench):
        if at is not None:
            yield Metric(f"{side.key}/{dtype}/wins_from{'_with_copies' * copies}", at, "", "time", "min")


def write_csv(path: Path, bench: Bench) -> None:
    """Every sample: seconds of a product, and FLOP/s of the ceiling in the same round."""
    with csv_file(path) as writer:
        writer.writerow(("by", "device", "dtype", "size", "what", "sample", "calls", "seconds", "ceiling_flop_per_s"))
        for side, one in bench.timed:
            found, head = one.found, (side.label, one.found.device, one.found.dtype, one.found.size)
            for number, pair in enumerate(zip(found.calls, found.samples, found.ceilings, strict=True)):
                writer.writerow((*head, "product", number, *pair))
            for number, each in enumerate(found.with_copies):
                writer.writerow((*head, "with copies", number, 1, each, None))
        for side, placed in bench.misplaced.items():
            for name in ("in_place", "as_written", "copied"):
                for number, each in enumerate(getattr(placed, name)):
                    head = (side.label, placed.here, *(bench.plan.placed or ()))
                    writer.writerow((*head, name, number, 1, each, None))


def crossovers(bench: Bench, dtype: str) -> Iterator[tuple[Side, bool, int]]:
    """Those of a dtype: the side on a GPU, whether with copies, and the size from which on it wins."""
    for side, of, copies, at in _crossovers(bench):
        if of == dtype and at is not None:
            yield side, copies, at


def _crossovers(bench: Bench) -> Iterator[tuple[Side, str, bool, int | None]]:
    for side, dtype, gpu, cpu in _against_cpu(bench):
        for copies in (False, True):
            yield side, dtype, copies, wins_from(gpu, cpu, copies=copies)


def _against_cpu(bench: Bench) -> Iterator[tuple[Side, str, list[Rates], list[Rates]]]:
    """Each side on a GPU and dtype, its products, and those of the same framework on the CPU; both were timed."""
    for side in bench.products:
        if side.place == "cpu":
            continue
        for dtype in bench.plan.dtypes:
            gpu, cpu = ([one for at, one in _timed(bench, dtype) if at == which] for which in (side, Side(side.name)))
            if gpu and cpu:
                yield side, dtype, gpu, cpu


def _timed(bench: Bench, dtype: str) -> list[tuple[Side, Rates]]:
    return [(side, one) for side, one in bench.timed if one.found.dtype == dtype]


def _ceilings(bench: Bench, dtype: str) -> list[float]:
    """GFLOP/s, of each product of a dtype with which it was measured."""
    return [one.ceiling for _, one in _timed(bench, dtype) if one.ceiling is not None]


def _rate(rate: Median) -> tuple[str, str]:
    return str(rate), "" if rate.ends is None else f"{digits(rate.ends[0])} to {digits(rate.ends[1])}"


def _kept(bench: Bench, one: Rates) -> Median | None:
    """Its share of the ceiling; None where there is none, or where others were at work."""
    return None if bench.others else one.share


def _share(bench: Bench, one: Rates) -> list[str]:
    share = _kept(bench, one)
    if share is None:
        return [NOT_KEPT if one.share else "", ""]
    ends = "" if share.ends is None else f"{100 * share.ends[0]:.1f} to {100 * share.ends[1]:.1f}"
    return [percent(share.median), ends]


def _against(times: Sequence[float], in_place: Median) -> str:
    """With what it costs, where the intervals do not overlap."""
    ours = Median.of(times)
    clear = ours.above(in_place) or in_place.above(ours)
    cost = f"{100 * (ours.median / in_place.median - 1):+.0f} %" if clear else "not clear"
    return f"{_ms(ours.median)} ({cost})"


def _ms(value: float) -> str:
    return digits(1e3 * value)


def _title_of_memory(bench: Bench) -> str:
    dtype, size = bench.plan.placed or ("", 0)
    need = next((in_bytes(one.matrices) for one in bench.memory.values()), "")
    return f"memory of a {dtype} product, N = {size:,}, whose three matrices need {need}"


def _of_interval(plan: Plan) -> str:
    asked = f"{plan.samples} samples asked for, {plan.rounds} in each new process"
    if of_median(range(plan.samples)) is None:
        return f"{NOT_MEASURED}: {asked}, are too few for an interval of the median; use more stage.rounds"
    return f"interval of the median by order statistics, as if samples were independent; {asked}"


def _of_ceilings(bench: Bench) -> str:
    each = {dtype: _ceilings(bench, dtype) for dtype in bench.plan.dtypes}
    found = {dtype: statistics.median(rates) if rates else None for dtype, rates in each.items()}
    known = ", ".join(f"{dtype} {digits(rate)}" for dtype, rate in found.items() if rate is not None)
    other = ", ".join(dtype for dtype, rate in found.items() if rate is None)
    text = f"share of multiply-adds on registers in the same round, GFLOP/s: {known}" if known else ""
    text += "; uncertain, other processes are at work: no share is kept" if text and bench.others else ""
    return "; ".join(one for one in (text, f"{NOT_MEASURED}: {other}" if other else "") if one)


def _above_ceiling(bench: Bench) -> Iterator[tuple[str, str]]:
    """Products beyond what is taken for the limit: then it was not one."""
    above = [
        f"{side} {one.found.problem} {100 * share.median:.0f} %"
        for side, one in bench.timed
        if (share := _kept(bench, one)) and (share.ends[0] if share.ends else share.median) > 1
    ]
    if above:
        yield "above it", f"{', '.join(above)}: multiply-adds had less of the cores than these, or a lower clock rate"


def _about_misplaced(side: Side, one: Misplaced) -> Iterator[tuple[str, str]]:
    if one.missing:
        yield f"{side}, misplaced", f"{NOT_MEASURED}: {one.missing}"
    elif one.refused:
        yield f"{side}, misplaced", f"as written it {one.refused}"
    elif one.result_on:
        yield f"{side}, misplaced", f"as written it copies by itself; the result is on {one.result_on}"


def _not_timed(bench: Bench) -> Iterator[tuple[str, str]]:
    """Each reason once for a side and a dtype."""
    for side, found in bench.products.items():
        reasons: dict[tuple[str, str], list[str]] = {}
        for one in found:
            if one.fault:
                yield f"{side} {one.problem}", f"WRONG, so it was not timed: {one.fault}"
            elif one.missing:
                reasons.setdefault((one.dtype, one.missing), []).append(f"{one.size:,}")
        for (dtype, why), sizes in reasons.items():
            whole = len(sizes) == len(bench.plan.sizes)
            yield f"{side} {dtype}{'' if whole else ' ' + ', '.join(sizes)}", f"not run: {why}"
    yield from bench.absent.items()
    for side, why in bench.ended.items():
        yield side.label, f"{NOT_MEASURED}: {why}"


def _wins(bench: Bench) -> Iterator[tuple[str, str]]:
    if all(side.place == "cpu" for side in bench.plan.sides):
        yield "a GPU wins", f"{NOT_MEASURED}: the device is the CPU"
    for side, dtype, gpu, cpu in _against_cpu(bench):
        other = f"{side.name} on the CPU"
        for copies in (False, True):
            yield f"{side} {dtype}{' with copies' * copies}", _win(gpu, cpu, other, copies=copies)


def _win(gpu: list[Rates], cpu: list[Rates], other: str, *, copies: bool) -> str:
    if copies and not any(one.with_copies for one in gpu):
        why = ": the host's matrices are NumPy's, which has no bfloat16" * (gpu[0].found.dtype == "bfloat16")
        return f"{NOT_MEASURED}{why}"
    at = wins_from(gpu, cpu, copies=copies)
    return why_no_win(gpu, cpu, other, copies=copies) if at is None else f"quicker than {other} from {at:,} on"


def _with_ends(name: str, value: Median | None, unit: str) -> Iterator[Metric]:
    if value is None:
        return
    yield Metric(name, value.median, unit, "time", "max")
    if value.ends is not None:
        yield Metric(f"{name}_low", value.ends[0], unit, "time", "max", "low")
        yield Metric(f"{name}_high", value.ends[1], unit, "time", "max", "high")
