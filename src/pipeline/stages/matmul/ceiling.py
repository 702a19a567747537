"""What the processor can do at most while a round is measured: multiply-adds on registers, burst by burst."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from pipeline.kernels.cpu.ceilings import DTYPES, MultiplyAdds
from pipeline.machine.blas import SPINS_S

BURSTS = 11
BURST_S = 0.004  # shorter than the slice that a scheduler gives to another process

Ceiling = Callable[[str], float | None]  # FLOP per second now, of a dtype; None: not measured


def not_measured(dtype: str) -> float | None:
    """Stands in for a measured ceiling where there is none: without a compiler, and on a GPU."""
    return None


def of_cpu(threads: int) -> Ceiling:
    """Of so many threads. Raises UserError without a compiler."""
    bursts = {dtype: Burst(MultiplyAdds(threads, dtype)) for dtype in DTYPES}

    def now(dtype: str) -> float | None:
        return bursts[dtype].rate() if dtype in bursts else None

    return now


class Burst:
    """Multiply-adds of one dtype, in bursts of BURST_S."""

    def __init__(self, work: MultiplyAdds) -> None:
        self.work, self.rounds = work, 1000
        while work.seconds(self.rounds) < BURST_S:
            self.rounds *= 2

    def rate(self) -> float:
        """FLOP per second: the median of BURSTS, after a rest."""
        time.sleep(SPINS_S)
        return self.work.flop(self.rounds) / statistics.median(self.work.seconds(self.rounds) for _ in range(BURSTS))
