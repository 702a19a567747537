"""Rates and shares of a product's samples, their medians, and from which size on one device is quicker than another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pipeline.report.intervals import of_median
from pipeline.report.table import digits
from pipeline.stages.matmul.timing import Found

GIGA = 1e9


@dataclass(frozen=True)
class Median:
    """Of samples, with its confidence interval (`report.intervals.of_median`); `ends` is None of too few samples."""

    median: float
    ends: tuple[float, float] | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Median:
        return cls(statistics.median(values), of_median(values))

    def above(self, other: Median) -> bool:
        """Whether the intervals show that it is larger."""
        return self.ends is not None and other.ends is not None and self.ends[0] > other.ends[1]

    def __str__(self) -> str:
        return digits(self.median)


class Rates:
    """Of a product that was timed. Rates in GFLOP/s."""

    def __init__(self, found: Found) -> None:
        self.found = found

    @cached_property
    def rate(self) -> Median:
        return Median.of(self._rates(self.found.samples))

    @cached_property
    def with_copies(self) -> Median | None:
        """The same where operands and result are copied to and from the device."""
        return Median.of(self._rates(self.found.with_copies)) if self.found.with_copies else None

    @cached_property
    def share(self) -> Median | None:
        """Of the ceiling in the same round; None where it was not measured."""
        rates = zip(self._rates(self.found.samples), self.found.ceilings, strict=True)
        shares = [GIGA * rate / ceiling for rate, ceiling in rates if ceiling is not None]
        return Median.of(shares) if shares else None

    @cached_property
    def ceiling(self) -> float | None:
        """GFLOP/s of multiply-adds, the median over the rounds."""
        known = [one for one in self.found.ceilings if one is not None]
        return statistics.median(known) / GIGA if known else None

    def _rates(self, seconds: Sequence[float]) -> list[float]:
        return [self.found.problem.flop / one / GIGA for one in seconds]


def wins_from(gpu: Sequence[Rates], cpu: Sequence[Rates], *, copies: bool) -> int | None:
    """The smallest size from which on the GPU is clearly quicker at every size that both were timed at.

    `copies`: with operands from the host's memory and the result back to it. None: not at the largest one, for
    the reason that `why_no_win` says.
    """
    of_cpu, found = {one.found.size: one.rate for one in cpu}, None
    for one in sorted(gpu, key=lambda each: -each.found.size):
        ours, theirs = one.with_copies if copies else one.rate, of_cpu.get(one.found.size)
        if ours is None or theirs is None:
            continue
        if not ours.above(theirs):
            break
        found = one.found.size
    return found


def why_no_win(gpu: Sequence[Rates], cpu: Sequence[Rates], other: str, *, copies: bool) -> str:
    """What is known where `wins_from` is None; `other`: what the CPU's are called."""
    of_cpu = {one.found.size: one.rate for one in cpu}
    pairs = [(one.found.size, one.with_copies if copies else one.rate, of_cpu.get(one.found.size)) for one in gpu]
    both = [(size, ours, theirs) for size, ours, theirs in pairs if ours is not None and theirs is not None]
    if not both:
        return "not measured: no size was timed by both"
    size, ours, theirs = max(both, key=lambda one: one[0])
    if ours.ends is None or theirs.ends is None:
        return f"not known: too few samples for an interval at {size:,}"
    how = "slower" if theirs.above(ours) else "not clearly quicker"
    return f"{how} than {other} at {size:,}, the largest that both were timed at"
