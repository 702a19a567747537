"""How long kernels take, in turns: what slows the machine down for a while then slows all of them down."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pipeline.contracts.kernels import Launch
from pipeline.kernels.card_state import State

Key = TypeVar("Key")
FEWEST = 3  # samples, so that there is a spread


@dataclass
class Times:
    """Seconds of one product. `burst`: a single one after another kernel's turn; `sustained`: the mean of `calls`.

    `states`: clock and power of the GPU right after each sustained sample; None of a kernel of the CPU.
    Where `calls` is 1 a product takes so long that `sustained` holds the same samples as `burst`.
    """

    calls: int = 1
    burst: list[float] = field(default_factory=list)
    sustained: list[float] = field(default_factory=list)
    states: list[State | None] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds of one product of many in a row."""
        return statistics.median(self.sustained)


def _raise(_: object, error: Exception) -> None:
    raise error


def in_turns(
    launches: Mapping[Key, Launch],
    expected: Mapping[Key, float],
    rounds: int,
    budget_s: float,
    failed: Callable[[Key, Exception], object] = _raise,
    state: Callable[[Key], State | None] = lambda _: None,
) -> dict[Key, Times]:
    """`rounds` samples of each kernel, fewer of one that would take longer than `budget_s` altogether, FEWEST at least.

    `expected`: seconds of one product, by which the number of calls of a sample is chosen, once for each kernel. Rounds
    have an order by chance, the same in every run, and every other one goes backwards: a GPU's clock is what the kernel
    before has left. After a kernel whose threads keep cores busy, the next one waits until they sleep. `failed` is
    called with what a kernel raises, which then has no more turns.
    """
    found = {name: Times(_calls(expected[name], rounds, budget_s)) for name in launches}
    wanted = {name: min(rounds, max(FEWEST, int(budget_s / (2 * expected[name])))) for name in launches}
    chance, names = random.Random(0), [*launches]
    for number in range(rounds):
        names = names[::-1] if number % 2 else chance.sample(names, len(names))
        for name in names:
            if len(found[name].burst) >= wanted[name]:
                continue
            calls = found[name].calls
            try:
                burst = launches[name].seconds(1)
                sustained = launches[name].seconds(calls) if calls > 1 else burst
            except Exception as error:  # whatever the user's code may raise
                failed(name, error)
                wanted[name] = 0
                continue
            found[name].burst.append(burst)
            found[name].sustained.append(sustained)
            found[name].states.append(state(name))
            time.sleep(launches[name].rest_s)
    return found


def _calls(expected: float, rounds: int, budget_s: float) -> int:
    """Products in a sample of the sustained time: its part of half the budget, else FEWEST while that lasts, else one.

    A longer budget makes longer samples, not only more certain ones: a GPU's clock falls as it warms up.
    """
    calls = int(budget_s / (2 * rounds) / max(expected, 1e-9))
    return max(calls, FEWEST if FEWEST * rounds * expected <= budget_s else 1)


def rates(flop: int, seconds: Sequence[float]) -> list[float]:
    """GFLOP/s of each sample."""
    return [flop / one / 1e9 for one in seconds]


def median_rate(flop: int, seconds: Sequence[float]) -> float:
    """GFLOP/s by the median time."""
    return flop / statistics.median(seconds) / 1e9
