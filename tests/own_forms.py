"""Forms of the two-layer net of which one is right; the others show what has to be found out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pipeline.backends.shared import arrays_numpy, two_layer_numpy
from pipeline.backends.shared.arrays import Arrays
from pipeline.backends.shared.two_layer import Form, Net, Way, by_hand

STEP_S = 0.002  # that a step takes on the slow device
COMPILES_S = 0.05  # that a call takes which compiles


class Right(two_layer_numpy.ByHand):
    name: ClassVar[str] = "right"


class Transposed(two_layer_numpy.ByHand):
    """Of a net whose matrices are square, so that all shapes go together."""

    name: ClassVar[str] = "transposed"

    def step(self) -> None:
        self.last, w1, self.w2 = by_hand(self.x, self.y, self.w1.T, self.w2, self.rate)
        self.w1 = w1.T


class Narrow(two_layer_numpy.ByHand):
    """Float32 that is called float64."""

    name: ClassVar[str] = "narrow"

    def step(self) -> None:
        narrow = [each.astype(np.float32) for each in (self.x, self.y, self.w1, self.w2)]
        found = by_hand(narrow[0], narrow[1], narrow[2], narrow[3], self.rate)
        self.last, self.w1, self.w2 = (np.asarray(each, np.float64) for each in found)


class Float32(two_layer_numpy.ByHand):
    """Float32 that says so."""

    name: ClassVar[str] = "float32"

    def start_from(self, w1: np.ndarray, w2: np.ndarray) -> None:
        self.x, self.y = self.x.astype(np.float32), self.y.astype(np.float32)
        super().start_from(w1.astype(np.float32), w2.astype(np.float32))


class Nan(two_layer_numpy.ByHand):
    name: ClassVar[str] = "nan"

    def step(self) -> None:
        super().step()
        self.last = self.last * np.nan


class Drifting(two_layer_numpy.ByHand):
    """Its losses are right, its weights are not."""

    name: ClassVar[str] = "drifting"

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        return self.w1, self.w2 * (1 + 1e-11)


class Refusing(two_layer_numpy.ByHand):
    name: ClassVar[str] = "refusing"

    def step(self) -> None:
        raise NotImplementedError("no such operation\nand more")


class Idle(two_layer_numpy.ByHand):
    """Right until it is timed: then it trains no more."""

    name: ClassVar[str] = "idle"
    starts = 0

    def start_from(self, w1: np.ndarray, w2: np.ndarray) -> None:
        self.starts += 1
        super().start_from(w1, w2)

    def step(self) -> None:
        if self.starts == 1:
            super().step()


class Stopping(two_layer_numpy.ByHand):
    """Trains for 600 steps, however many it is asked for."""

    name: ClassVar[str] = "stopping"

    def start_from(self, w1: np.ndarray, w2: np.ndarray) -> None:
        self.left = 600
        super().start_from(w1, w2)

    def step(self) -> None:
        self.left -= 1
        if self.left >= 0:
            super().step()


class Twice(two_layer_numpy.ByHand):
    """Takes its time in its first two calls."""

    name: ClassVar[str] = "twice"
    calls = 0

    def step(self) -> None:
        self.calls += 1
        if self.calls <= 2:
            time.sleep(COMPILES_S)
        super().step()


@dataclass(frozen=True)
class Part:
    """An array that a step is going to leave: the loss, w1 or w2."""

    step: Future[tuple[np.ndarray, ...]]
    which: int


class Launched(arrays_numpy.Arrays):
    """Arrays of a device that computes by itself, and takes its time."""

    def get(self, array: Any) -> np.ndarray:
        return super().get(array.step.result()[array.which] if isinstance(array, Part) else array)

    def wait(self, arrays: Sequence[Any]) -> None:
        for array in arrays:
            self.get(array)

    def ready(self, arrays: Sequence[Any]) -> bool:
        return all(array.step.done() for array in arrays if isinstance(array, Part))


class Unsynchronised(Launched):
    """The same, and whoever waits for them does not wait."""

    def wait(self, arrays: Sequence[Any]) -> None:
        """Too early."""


class Asynchronous(Form):
    """Launches a step, and returns before it is computed."""

    name: ClassVar[str] = "asynchronous"
    how: ClassVar[str] = "in a thread"

    def __init__(self, net: Net, arrays: Arrays) -> None:
        self.thread = ThreadPoolExecutor(1)
        super().__init__(net, arrays)

    def start_from(self, w1: np.ndarray, w2: np.ndarray) -> None:
        self.weights: tuple[Any, Any] = w1, w2

    def held(self) -> tuple[Any, Any]:
        return self.weights

    def step(self) -> None:
        launched = self.thread.submit(self._computed, self.weights)
        self.last, self.weights = Part(launched, 0), (Part(launched, 1), Part(launched, 2))

    def _computed(self, weights: tuple[Any, Any]) -> tuple[np.ndarray, ...]:
        time.sleep(STEP_S)
        w1, w2 = (self.arrays.get(each) for each in weights)
        return by_hand(self.x, self.y, w1, w2, self.rate)


FORMS: tuple[type[Form], ...] = (Right, Narrow)
WAYS: tuple[type[Way], ...] = ()


def arrays(place: str) -> Arrays:  # noqa: ARG001
    return arrays_numpy.Arrays()
