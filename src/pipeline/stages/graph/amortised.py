"""What steps cost when the first calls, with their compilation, count: and from how many on one way is the quicker."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.backends.shared.form_bench import Found
from pipeline.report.intervals import ENOUGH, lie_apart


@dataclass(frozen=True)
class Cost:
    """`first`, `second`: seconds of those steps, with all that they compile. `later`: of each step after them."""

    first: float
    second: float
    later: float

    def of(self, n: int) -> float:
        """Seconds of `n` steps."""
        return self.first if n == 1 else self.first + self.second + (n - 2) * self.later


def crossover(eager: Cost, compiled: Cost) -> int | None:
    """The number of steps from which on they take less in all when they are compiled; None where there is none."""
    gain = eager.later - compiled.later
    if gain <= 0:
        return None
    behind = compiled.of(2) - eager.of(2)
    if behind >= 0:
        return math.floor(behind / gain) + 3
    return 1 if compiled.first < eager.first else 2


def distinguishable(one: Found, other: Found) -> bool:
    """Whether the ranges of their later steps lie apart; both were timed. Fewer than ENOUGH samples have no range."""
    if few(one, other):
        return False
    return lie_apart(*(steps(each, max(each.samples)) for each in (one, other)))


def few(one: Found, other: Found) -> bool:
    """Whether either has fewer than ENOUGH samples of its later steps, or none among as many as the other; both were
    timed."""
    most = max(*one.samples, *other.samples)
    return any(len(steps(each, most)) < ENOUGH for each in (one, other))


def cost(found: Found) -> Cost | None:
    """By the medians of the largest number of steps that was timed; None where it was not timed."""
    if not found.first or not found.samples:
        return None
    return _cost(found, max(found.samples))


def _cost(found: Found, n: int) -> Cost:
    """The same, with a later step as among `n`."""
    return Cost(*(statistics.median(each) for each in (found.first, found.second, steps(found, n))))


def steps(found: Found, n: int) -> list[float]:
    """Seconds of a step, waited for, in each sample of `n`; none where its process ended before."""
    return [(launch + wait) / n for launch, wait in found.samples.get(n, ())]


def with_first(found: Found, n: int) -> float:
    """Seconds of a step among `n` of which the first two compile; a later one by the median of the samples of `n`."""
    return _cost(found, n).of(n) / n


def baseline(found: Sequence[Found]) -> Found | None:
    """The eager way of a framework, if it was timed."""
    return next((one for one in found if one.eager and one.samples and one.first), None)


def spread(times: Sequence[float]) -> tuple[str, str]:
    """Median, and least to most; empty where there are none."""
    if not times:
        return "", ""
    return ms(statistics.median(times)), f"{ms(min(times))} to {ms(max(times))}"


def ms(value: float) -> str:
    """A time in seconds, written in milliseconds to three digits."""
    thousand = 1e3 * value
    return f"{thousand:,.{0 if thousand >= 99.5 else 1 if thousand >= 9.95 else 2 if thousand >= 0.995 else 3}f}"
