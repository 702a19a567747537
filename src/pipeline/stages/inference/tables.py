"""What stage=inference found, as metrics and a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.backends.shared.step_breakdown import Machine
from pipeline.report.table import digits, percent, seconds, size
from pipeline.runs import peaks, result
from pipeline.runs.result import Metric, Table
from pipeline.stages.inference.bench import Timed


@dataclass(frozen=True)
class Found:
    """The sizes that were timed. `unit`: what is counted ("images"), `units` of them an example; `machine`: the rate
    of a bare matrix product, of the precision's dtype, before the passes were timed and after.
    """

    timed: Sequence[Timed]
    unit: str
    units: int
    machine: tuple[Machine, Machine]

    @property
    def limit(self) -> Machine:
        """The quicker of both: other work, of which one of them may have had more, only slows a product down."""
        return max(self.machine, key=lambda one: one.FLOP_per_s)

    def rates(self, one: Timed) -> list[float]:
        """Units a second, of each round."""
        return [self.units * rate for rate in one.examples_per_s]

    def share(self, one: Timed) -> float | None:
        """Of the rate of a bare matrix product; None where the FLOP of a pass are not known."""
        return None if one.flop is None else one.flop / one.latency_s / self.limit.FLOP_per_s

    def metrics(self) -> Iterator[Metric]:
        """Of each size, and those that the run is judged by: the smallest size's latency, and the highest rate."""
        if not self.timed:
            return
        yield result.seconds("inference/latency_s", self.timed[0].latency_s)
        best = max(statistics.median(self.rates(one)) for one in self.timed)
        yield result.rate(f"inference/{self.unit}_per_s", best, self.unit)
        for one in self.timed:
            yield from self._of(one, f"batch_{one.batch}")

    def _of(self, one: Timed, name: str) -> Iterator[Metric]:
        yield result.seconds(f"{name}/latency_s", one.latency_s)
        if one.tail_s is not None:
            yield result.seconds(f"{name}/latency_p99_s", one.tail_s)
        yield result.rate(f"{name}/{self.unit}_per_s", statistics.median(self.rates(one)), self.unit)
        yield result.seconds(f"{name}/first_call_s", one.first_s)
        yield from peaks.named(one.peak, f"{name}/")
        share = self.share(one)
        if share is not None:
            yield Metric(f"{name}/matmul_share", share, "", "time", "max")

    def table(self) -> Table:
        """A row for each size."""
        rate = f"{self.unit}/s"
        columns = ("batch", "first call", "latency", "p99", "calls", rate, "of a matmul", "memory")
        return Table("passes of the model", columns, tuple(map(self._row, self.timed)))

    def _row(self, one: Timed) -> tuple[str, ...]:
        rates = self.rates(one)
        return (
            f"{one.batch:,}",
            seconds(one.first_s),
            seconds(one.latency_s),
            "" if one.tail_s is None else seconds(one.tail_s),
            f"{len(one.calls):,}",
            f"{digits(statistics.median(rates))} ({digits(min(rates))} to {digits(max(rates))}, n={len(rates)})",
            percent(self.share(one)),
            size(peak_of(one)),
        )

    def notes(self) -> Iterator[str]:
        """What a share of more than the whole means."""
        if any((self.share(one) or 0.0) > 1 for one in self.timed):
            yield (
                "of a matmul above 100 %: other work slowed the matmul down, or the pass's own products fit the caches "
                "better than one of its size"
            )

    def limit_row(self) -> tuple[str, str]:
        """What the shares are of, and what a pass computes."""
        rate = f"{self.limit.FLOP_per_s / 1e9:,.0f} GFLOP/s of a matmul of side {self.limit.side:,}"
        flop = self.timed[0].flop
        if flop is None:
            return "limit", f"{rate}; the FLOP of this model are not known"
        each = flop / self.timed[0].batch / self.units
        return "limit", f"{rate}; {each / 1e6:,.3g} MFLOP for each of the {self.unit}"


def peak_of(one: Timed) -> int:
    """Bytes on the GPU where one is used, else of the process."""
    return one.peak.get("device_bytes", one.peak["process_bytes"])
