"""Passes of a model that only predicts: first calls, whether their outputs are right, then their times, in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import numpy as np

from pipeline.machine.memory import forget_process_peak
from pipeline.machine.others import Others
from pipeline.machine.precision import FORMATS, SAME_WITHIN
from pipeline.runs.fit import Passes
from pipeline.runs.run import Run

WARM_UP = 3  # calls of each size before any is timed, beside its first
TAIL = 100  # calls from which on a 99th percentile is one


@dataclass
class Timed:
    """Batches of one size. `first_s`: of the first call, in which frameworks compile; `peak`: bytes up to its end.

    `rounds`: seconds of each call, round by round. `flop`: of the matrix products of a pass. `fault`: why it was not
    timed.
    """

    batch: int
    first_s: float
    peak: dict[str, int]
    flop: float | None
    rounds: list[list[float]] = field(default_factory=list)
    fault: str | None = None

    @property
    def calls(self) -> list[float]:
        """Seconds of every call that was timed."""
        return [seconds for found in self.rounds for seconds in found]

    @property
    def latency_s(self) -> float:
        """The median over all calls."""
        return statistics.median(self.calls)

    @property
    def latencies_s(self) -> list[float]:
        """The median of each round."""
        return [statistics.median(found) for found in self.rounds]

    @property
    def tail_s(self) -> float | None:
        """Below which 99 of 100 calls stay; None of too few."""
        return float(np.quantile(self.calls, 0.99)) if len(self.calls) >= TAIL else None

    @property
    def examples_per_s(self) -> list[float]:
        """Of each round."""
        return [self.batch * len(found) / math.fsum(found) for found in self.rounds]


class Bench:
    """`predictor`: the model; `x` (N, ...): the examples that batches are made of, as many as the largest takes or
    more.
    """

    def __init__(self, predictor: Passes, x: np.ndarray, batches: Sequence[int]) -> None:
        self.predictor, self.x = predictor, x
        self.first: dict[int, np.ndarray] = {}
        with predictor.settings():
            self.found = [self._begin(batch) for batch in sorted(batches)]  # so that each peak is its size's

    def _begin(self, batch: int) -> Timed:
        """The first call of a size, whose outputs are kept."""
        forget_process_peak()
        began = time.perf_counter()
        self.first[batch] = self.predictor.forward(self.x[:batch])
        seconds = time.perf_counter() - began
        return Timed(batch, seconds, self.predictor.peak_memory(), self.predictor.flop(self.x[:batch]))

    def verify(
        self,
        expected: np.ndarray,
        precision: str,
        layer_dtypes: Iterable[str | None] = (),
        where: str = "in other batches",
    ) -> None:
        """Hold the outputs of each size, before its `warm_up`, against those (N, ...) of the same examples elsewhere.

        `precision`, and layers with dtypes of their own, decide how products are rounded, which may differ from one
        size to another, and from a compiled pass to one that is not.
        """
        form = FORMATS[precision]
        dtypes = ["float16" if form.tf32 else form.compute, *filter(None, layer_dtypes)]  # TF32 has float16's digits
        part = max(SAME_WITHIN[dtype] for dtype in dtypes)
        for one in self.right:
            outputs, wanted = self.first[one.batch].astype(np.float64), expected[: one.batch]
            outputs = outputs[: len(wanted)]
            limit = part * float(np.max(np.abs(wanted)))
            difference = float(np.max(np.abs(outputs - wanted)))
            if not difference <= limit:
                one.fault = (
                    f"batches of {one.batch:,}: outputs differ by up to {difference:.1e} from those of the same "
                    f"examples {where}, more than rounding explains ({limit:.1e})"
                )

    def warm_up(self) -> None:
        """Call each size before any is timed. Its first outputs are let go of."""
        self.first.clear()
        for one in self.right:
            for _ in range(WARM_UP):
                self.predictor.forward(self.x[: one.batch])

    @property
    def right(self) -> list[Timed]:
        """The sizes whose outputs were as expected."""
        return [one for one in self.found if one.fault is None]

    def measure(self, one: Timed, seconds: float) -> None:
        """A round of one size: calls for so many seconds, one at least, of other examples each."""
        places = len(self.x) // one.batch
        taken, ends = list[float](), time.perf_counter() + seconds
        while not taken or time.perf_counter() < ends:
            first = len(taken) % places * one.batch
            batch = self.x[first : first + one.batch]
            began = time.perf_counter()
            self.predictor.forward(batch)
            taken.append(time.perf_counter() - began)
        one.rounds.append(taken)


def in_turns(benches: Sequence[Bench], rounds: int, seconds: float, run: Run) -> float | None:
    """Rounds of all sizes of all models, in turns, the models side by side at each size. Returns which part of the
    cores other processes had meanwhile."""
    with closing(run.progress("timing", total=rounds)) as progress, ExitStack() as settings:
        for bench in benches:
            settings.enter_context(bench.predictor.settings())
            bench.warm_up()
        turns = sorted(((bench, one) for bench in benches for one in bench.right), key=lambda turn: turn[1].batch)
        others = Others()
        for number in range(rounds):
            for bench, one in turns:
                bench.measure(one, seconds)
            progress.advance(1, f"round {number + 1} of {rounds}")
        return others.share()
