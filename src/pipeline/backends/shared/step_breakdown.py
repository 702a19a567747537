"""Looking into one step after training: its numbers against another precision's, and what the machine does at a dtype.

A backend's probe module (`experiment.backend.probe`) offers

    first_step(experiment, data, resolved) -> FirstStep
    machine(experiment, resolved) -> Machine
    step_breakdown(experiment, data, resolved, step_s) -> StepBreakdown
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline.loaders import blocks, epoch_order
from pipeline.runs.weights import Weights

if TYPE_CHECKING:
    from pipeline.datasets import Data
    from pipeline.experiment import Experiment

ROUNDS = 3  # of each timing; the median counts
WATCHED_SECONDS = 0.3  # of training that a profiler looks at, if that is LEAST_WATCHED steps or more
LEAST_WATCHED, MOST_WATCHED = 10, 64  # steps
SECONDS = 0.02  # that one round takes at the least
LONGEST = 8  # operations that are listed one by one
NUMBERS = 2**24  # that are moved: 32 MB in 16 bits, beyond the caches of most machines


@dataclass(frozen=True)
class FirstStep:
    """The first optimizer step without dropout, whose masks are other ones in another dtype."""

    loss: float
    gradients: Weights
    weights: Weights


@dataclass(frozen=True)
class Product:
    """A matrix product of a step, (m, k) by (k, n): a convolution is counted as the product that it comes to."""

    name: str
    m: int
    n: int
    k: int
    seconds: float  # of all calls in a step
    calls: float
    ceiling_FLOP_per_s: float | None = None  # of a bare product of these sizes, at the same dtype, on this machine

    @property
    def FLOP(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.calls


@dataclass(frozen=True)
class Operation:
    """An operation of a step, of whatever kind."""

    name: str
    kind: str
    seconds: float  # of all calls in a step


@dataclass(frozen=True)
class StepBreakdown:
    """Where the time of a training step goes: the step that was trained, taken again under a profiler.

    It has the training's own loop, batches, loader, threads and compiled program. Shares are of `step_s`, the wall time
    of a step under the profiler; None for a part that is not separable. They add up to 1 at most.
    """

    how: str
    step_s: float
    shares: Mapping[str, float | None]
    products: list[Product] = field(default_factory=list)
    longest: list[Operation] = field(default_factory=list)  # the LONGEST of them
    tensor_core_share: float | None = None  # of the time that the GPU is busy


class Device(Protocol):
    """What a framework's side of `machine` offers."""

    def product(self, a: Any, b: Any) -> Any: ...

    def wait(self, result: Any) -> None: ...


@dataclass(frozen=True)
class Machine:
    """What the device does at the precision's dtypes, apart from any model (median of ROUNDS rounds).

    `moved_per_s`: numbers of the parameters' dtype that reach it a second, from the host's memory or, on a CPU, from
    one place in memory to another. `FLOP_per_s`: of a square product of side `side` in the compute dtype.
    """

    moved_per_s: float
    FLOP_per_s: float
    side: int

    @classmethod
    def measure(cls, device: Device, move: Callable[[], object], square: Any) -> Machine:
        """By `move`, which moves NUMBERS numbers, and by the product of `square` with itself."""
        side = int(square.shape[0])
        moving = seconds_of(move)
        multiplying = seconds_of(lambda: device.wait(device.product(square, square)))
        return cls(moved_per_s=NUMBERS / moving, FLOP_per_s=2.0 * side**3 / multiplying, side=side)


def steps_to_watch(step_s: float, at_hand: int) -> int:
    """How many steps a profiler looks at: of short steps more, and no more than the `at_hand` that come in one go."""
    wanted = int(WATCHED_SECONDS / max(step_s, 1e-9))
    return min(at_hand, max(LEAST_WATCHED, min(MOST_WATCHED, wanted)))


def window(examples: int, batch_size: int, step_s: float, warm_up: int) -> tuple[int, int]:
    """Steps to skip, at least `warm_up`, and steps to look at: whole batches of one epoch, the earliest there is."""
    each, full = math.ceil(examples / batch_size), max(1, examples // batch_size)
    steps = steps_to_watch(step_s, full)
    return (warm_up if warm_up + steps <= full else math.ceil(warm_up / each) * each), steps


def with_rest(parts: Mapping[str, float]) -> dict[str, float]:
    """Shares of a step, with what is left of it as `outside`; scaled down where threads at once come to more than 1."""
    total = max(1.0, sum(parts.values()))
    found = {kind: share / total for kind, share in parts.items()}
    return {**found, "outside": max(0.0, 1 - sum(found.values()))}


def longest(operations: Iterable[Operation]) -> list[Operation]:
    """The LONGEST operations that take the most time, the longest first."""
    return sorted(operations, key=lambda operation: -operation.seconds)[:LONGEST]


def in_memory(width: int) -> Callable[[], None]:
    """A copy of NUMBERS numbers of `width` bytes from one place in memory to another, the same places at each call.

    A new place costs the time in which the system clears it.
    """
    numbers = np.ones(NUMBERS, f"u{width}")
    place = np.empty_like(numbers)
    return lambda: np.copyto(place, numbers)


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call: the median of ROUNDS rounds, each as many calls as take SECONDS, after a warm-up."""
    call()
    started = time.perf_counter()
    call()
    times = max(1, int(SECONDS / max(time.perf_counter() - started, 1e-9)))
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            call()
        rounds.append((time.perf_counter() - started) / times)
    return statistics.median(rounds)


def first_batch(experiment: Experiment, data: Data) -> np.ndarray:
    """The rows of the training set in the first batch of the first epoch."""
    order = epoch_order(len(data.train), experiment.seed, 0)
    rows: np.ndarray = next(iter(blocks(order, experiment.training.batch_size, 1)))[0]
    return rows


def as_json(machine: Machine, step_breakdown: StepBreakdown) -> dict[str, Any]:
    """What a probe found, as plain data for a JSON file."""
    return {"machine": asdict(machine), "step_breakdown": asdict(step_breakdown)}
