"""Row A13: the rate at sizes that are and are not multiples of 8, 16 and 64, and what padding with zeros would gain.

A product of N × N matrices can be had from one of P × P with P > N, the next multiple of 8, 16 or 64, whose further
rows and columns are zero. It takes the time of P, and its useful work is that of N. The copies to and from padded
matrices are not in these times: whoever pads keeps the matrices padded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from pipeline.report.canvas import canvas, colour_of, mark_of, plain, save
from pipeline.report.intervals import ENOUGH, lie_apart
from pipeline.report.table import digits
from pipeline.runs.result import Metric, Table
from pipeline.stages.wmma.bench import Bench

UNITS = (8, 16, 64)
# From a multiple of 64 to the next: some sizes off every multiple of 8, and the multiples that they are padded to.
STEPS = (0, 1, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 47, 48, 63, 64)


@dataclass(frozen=True)
class Around:
    """`rates`: GFLOP/s, sustained, by kernel and N. `seconds`: of one product; `samples`: each that this is the median
    of. `uncertain`: kernels whose processor others used too.
    """

    rates: Mapping[str, Mapping[int, float]]
    seconds: Mapping[str, Mapping[int, float]]
    samples: Mapping[str, Mapping[int, Sequence[float]]]
    uncertain: Collection[str] = ()

    def padded(self, name: str, size: int, unit: int) -> float:
        """The useful GFLOP/s of a product of N padded to the next multiple of `unit`."""
        return 2 * size**3 / self.seconds[name][next_multiple(size, unit)] / 1e9

    def certain(self, name: str, size: int) -> bool:
        """Whether padding by the unit of `gain` changes more than the samples differ: their ranges do not overlap."""
        return lie_apart(*(self.samples[name][n] for n in (size, next_multiple(size, self.gain(name, size)[1]))))

    def typical_gain(self, name: str) -> float:
        """The median of `gain` over the sizes that are no multiple of 8; of one that is not certain it is 1."""
        off = [size for size in self.rates[name] if size % 8]
        return median(self.gain(name, size)[0] if self.certain(name, size) else 1.0 for size in off)

    def gain(self, name: str, size: int) -> tuple[float, int]:
        """The best of these over the rate without padding, and its unit."""
        unit = max(UNITS, key=lambda unit: self.padded(name, size, unit))
        return self.padded(name, size, unit) / self.rates[name][size], unit


def sizes(least: int) -> list[int]:
    """From the first multiple of 64 from `least` on to the next."""
    first = next_multiple(least, 64)
    return [first + step for step in STEPS]


def measured(bench: Bench, least: int) -> Around | None:
    """The yardstick and the fastest kernel beside it at `sizes`; None where no kernel is left."""
    problems = {size: bench.plan.problem(size) for size in sizes(least)}
    chosen = [name for name in (bench.yardstick, bench.fastest) if name in bench.timed]
    chosen = chosen or [name for name, kernel in bench.timed.items() if kernel.yardstick]
    if not chosen and bench.broken:
        bench.run.note(f"stage.around={least}: not timed: {bench.broken}")
        return None
    if not chosen:
        bench.run.note(f"stage.around={least}: no kernel was timed before, so none is timed around it")
        return None
    for gemm in problems.values():
        bench.verify_at(gemm, chosen)
    with bench.watched():
        bench.times_around = times = bench.time(list(problems.values()), chosen)
    names = [name for name in chosen if all(name in times[gemm] for gemm in problems.values())]
    if not names:
        bench.run.note(f"stage.around={least}: no kernel was timed at all of these sizes")
        return None
    seconds = {name: {size: times[gemm][name].median for size, gemm in problems.items()} for name in names}
    rates = {name: {size: 2 * size**3 / one / 1e9 for size, one in found.items()} for name, found in seconds.items()}
    samples = {name: {size: times[gemm][name].sustained for size, gemm in problems.items()} for name in names}
    return Around(rates, seconds, samples, [name for name in names if bench.is_uncertain(name)])


def tables(around: Around) -> tuple[Table, ...]:
    """Of each kernel, a row for each size."""
    return tuple(_table(around, name) for name in around.rates)


def _table(around: Around, name: str) -> Table:
    columns = ("N", "multiple of", "GFLOP/s", *(f"as {unit}s" for unit in UNITS), "gain", "by")
    rows = []
    for size, rate in around.rates[name].items():
        padded = ("" if size % unit == 0 else digits(around.padded(name, size, unit)) for unit in UNITS)
        rows.append((str(size), str(multiple(size)), digits(rate), *padded, *_best(around, name, size)))
    doubt = "; uncertain, as the notes say" if name in around.uncertain else ""
    units = ", ".join(map(str, UNITS))
    return Table(f"{name}: GFLOP/s as N is, and padded to a multiple of {units}{doubt}", columns, tuple(rows))


def _best(around: Around, name: str, size: int) -> tuple[str, str]:
    """What the best padding gains, and the N that it pads to, where that is known."""
    gain, unit = around.gain(name, size)
    if size % unit == 0:
        return "", ""
    if name in around.uncertain:
        return "-", ""
    if not around.certain(name, size):
        return "none", ""
    return f"{100 * (gain - 1):+.0f} %", str(next_multiple(size, unit))


def summary() -> tuple[tuple[str, str], ...]:
    """What the last columns of the tables are."""
    gain = (
        f"of the best padding, without copies; none: the ranges of the samples overlap, or have fewer than {ENOUGH}; "
        "-: uncertain"
    )
    return ("gain", gain), ("by", "the N that it pads to")


def metrics(around: Around) -> tuple[Metric, ...]:
    """Of each kernel: the rate off multiples of 8 as a share of that on multiples of 64, and what padding gains.

    Not of one that is uncertain.
    """
    found = []
    for name, rates in around.rates.items():
        if name in around.uncertain:
            continue
        on = [rate for size, rate in rates.items() if size % 64 == 0]
        off = [rate for size, rate in rates.items() if size % 8]
        share = fmean(off) / fmean(on)
        found += [
            Metric(f"padding/{name}/{what}", value, "", "time", "max")
            for what, value in (("off_8_share", share), ("gain", around.typical_gain(name)))
        ]
    return tuple(found)


def draw(path: Path, around: Around, title: str) -> None:
    """Rate against N; multiples of 64 large, of 8 middling, others small."""
    figure = canvas(7.2, 3.8)
    axes = figure.add_subplot()
    for number, name in enumerate(around.rates):
        rates, colour, mark = around.rates[name], colour_of(number), mark_of(number)
        axes.plot(list(rates), list(rates.values()), "-", color=colour, alpha=0.4)
        for size, rate in rates.items():
            axes.plot(size, rate, mark, ms=8 if size % 64 == 0 else 5 if size % 8 == 0 else 2.5, color=colour)
        axes.plot([], [], f"{mark}-", color=colour, label=name)
    axes.set(
        xlabel="N (marks: multiples of 64 large, of 8 middling, others small)",
        ylabel="GFLOP/s, sustained",
        ylim=(0, None),
    )
    plain(axes)
    figure.legend(frameon=False, fontsize=8, loc="outside right center")
    figure.suptitle(title, fontsize=10, wrap=True)
    save(figure, path)


def next_multiple(size: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `size`."""
    return -(-size // unit) * unit


def multiple(size: int) -> int:
    """The largest power of two up to 64 that divides it."""
    return min(size & -size, 64)
