"""What steps cost when the first call, with its compilation, counts: and from how many on one way is the quicker."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.backends.shared.form_bench import Found


@dataclass(frozen=True)
class Cost:
    """`first`: seconds of the first step, with all that it compiles. `later`: seconds of each step after it."""

    first: float
    later: float

    def of(self, n: int) -> float:
        """Seconds of `n` steps."""
        return self.first + (n - 1) * self.later


def crossover(eager: Cost, compiled: Cost) -> int | None:
    """The smallest number of steps that takes less in all when it is compiled; None where none does."""
    behind, gain = compiled.first - eager.first, eager.later - compiled.later
    if behind < 0:
        return 1
    if gain <= 0:
        return None
    return math.floor(behind / gain) + 2


def cost(found: Found) -> Cost | None:
    """By the medians of the largest number of steps that was timed; None where it was not timed."""
    if not found.first or not found.samples:
        return None
    return Cost(statistics.median(found.first), statistics.median(steps(found, max(found.samples))))


def steps(found: Found, n: int) -> list[float]:
    """Seconds of a step, waited for, in each sample of `n`."""
    return [(launch + wait) / n for launch, wait in found.samples[n]]


def with_first(found: Found, n: int) -> float:
    """Seconds of a step among `n` of which the first compiles; by the median of the samples of `n` steps."""
    return (statistics.median(found.first) + (n - 1) * statistics.median(steps(found, n))) / n


def baseline(found: Sequence[Found]) -> Found | None:
    """The eager way of a framework, if it was timed."""
    return next((one for one in found if one.eager and one.samples and one.first), None)


def spread(times: Sequence[float]) -> tuple[str, str]:
    """Median, and least to most."""
    return ms(statistics.median(times)), f"{ms(min(times))} to {ms(max(times))}"


def ms(value: float) -> str:
    """Milliseconds, to three digits."""
    thousand = 1e3 * value
    return f"{thousand:,.{0 if thousand >= 99.5 else 1 if thousand >= 9.95 else 2 if thousand >= 0.995 else 3}f}"
