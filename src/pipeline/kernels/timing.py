"""How long kernels take, in turns: what slows the machine down for a while then slows all of them down."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.contracts.kernels import Launch

CHUNK_S = 0.04  # of calls back to back that make one sample of the sustained time
Key = TypeVar("Key")
FEWEST = 3  # samples, so that there is a spread


@dataclass
class Times:
    """Seconds of one product. `burst`: the first after another kernel; `sustained`: the mean of many in a row."""

    burst: list[float] = field(default_factory=list)
    sustained: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of one product of many in a row."""
        return statistics.median(self.sustained)


def in_turns(
    launches: Mapping[Key, Launch], expected: Mapping[Key, float], rounds: int, budget_s: float
) -> dict[Key, Times]:
    """`rounds` samples of each kernel, fewer of one that would take longer than `budget_s` altogether, FEWEST at least.

    `expected`: seconds of one product. Every other round goes backwards.
    """
    found = {name: Times() for name in launches}
    wanted = {name: min(rounds, max(FEWEST, int(budget_s / (2 * expected[name])))) for name in launches}
    for number in range(rounds):
        turn = list(launches)[:: 1 if number % 2 == 0 else -1]
        for name in turn:
            if len(found[name].burst) >= wanted[name]:
                continue
            burst = launches[name].seconds(1)
            calls = int(min(CHUNK_S, budget_s / (2 * rounds)) / burst)
            found[name].burst.append(burst)
            found[name].sustained.append(launches[name].seconds(calls) if calls > 1 else burst)
    return found


def rates(flop: int, seconds: Sequence[float]) -> list[float]:
    """GFLOP/s of each sample."""
    return [flop / one / 1e9 for one in seconds]


def median_rate(flop: int, seconds: Sequence[float]) -> float:
    """GFLOP/s by the median time."""
    return flop / statistics.median(seconds) / 1e9
