"""The fastest setting of a framework on a source, and what it gains over the plainest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.backends.shared.load_bench import Found, median_rate
from pipeline.report.intervals import ENOUGH


@dataclass(frozen=True)
class Gain:
    """How many times as many images a second as the plainest setting; `low` and `high` by the ends of both ranges.

    `samples`: of the side that has fewer.
    """

    value: float
    low: float
    high: float
    samples: int

    @property
    def distinguishable(self) -> bool:
        """Whether the ranges lie apart, of samples enough for that to say something."""
        return self.enough and (self.low > 1 or self.high < 1)

    @property
    def enough(self) -> bool:
        """Whether there are samples enough for a verdict."""
        return self.samples >= ENOUGH

    def __str__(self) -> str:
        text = f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"
        if not self.enough:
            return f"too few rounds: {text}"
        return text if self.distinguishable else f"not distinguishable: {text}"


def plainest(found: Sequence[Found]) -> Found | None:
    """The first setting, which is the plainest, if it took part in the final turns."""
    return found[0] if found and found[0].final else None


def best(found: Sequence[Found]) -> Found | None:
    """The setting with the highest median rate in the final turns."""
    return max((one for one in found if one.final), key=lambda one: median_rate(one.final), default=None)


def gain(found: Sequence[Found]) -> Gain | None:
    """Of the best over the plainest, by the samples that both took in turns once they were chosen."""
    fastest, base = best(found), plainest(found)
    if fastest is None or base is None or fastest is base:
        return None
    fast, slow = ([sample.rate for sample in one.final] for one in (fastest, base))
    value = median_rate(fastest.final) / median_rate(base.final)
    return Gain(value, min(fast) / max(slow), max(fast) / min(slow), min(len(fast), len(slow)))
