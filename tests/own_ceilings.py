"""Operations of which the first is right; the others show what has to be found out before anything is timed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from pipeline.backends.shared import ceiling_bench
from pipeline.backends.shared.ceiling_bench import Call
from pipeline.backends.shared.ceilings_numpy import Numpy
from pipeline.machine.ceilings import Ceiling

TAKES_S = 0.005  # a product, on the slow device


class Right(Numpy):
    pass


class Ending(Right):
    """Its process ends in the third round: the launch is the last of each."""

    waits = 0

    def add(self, a: Any, b: Any) -> Call:
        def run() -> Any:
            self.waits += 1
            if self.waits > 1 + 2 * ceiling_bench.TINY_CALLS:  # verified once
                os.write(2, b"the machine has no memory left\n")
                os._exit(9)
            return a + b

        return run


def measured(place: str, rounds: int) -> Iterator[list[Ceiling]]:
    """A source of its own."""
    setattr(ceiling_bench, "SIZES", (32, 64))  # noqa: B010
    ceiling_bench.SAMPLE_S = 1e-4
    return ceiling_bench.Bench(Ending(), place).measured(rounds)


class Transposed(Numpy):
    def product(self, a: Any, b: Any) -> Call:
        return lambda: (a @ b).T


class OtherOperand(Numpy):
    """aᵀ·b."""

    def product(self, a: Any, b: Any) -> Call:
        return lambda: a.T @ b


class Narrow(Numpy):
    """Float32 that is called float64."""

    def product(self, a: Any, b: Any) -> Call:
        return lambda: (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)


class InBfloat16(Numpy):
    """Bfloat16 that is called float16."""

    def product(self, a: Any, b: Any) -> Call:
        def run() -> Any:
            return (shortened(a) @ shortened(b)).astype(a.dtype)

        return run if a.dtype == np.float16 else super().product(a, b)


def shortened(array: Any) -> np.ndarray:
    """Cut to the 8 bits of bfloat16, in float32."""
    return (array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


class ThreeQuarters(Numpy):
    """A sum that ends early."""

    def product(self, a: Any, b: Any) -> Call:
        terms = 3 * len(b) // 4
        return lambda: a[:, :terms] @ b[:terms]


class NarrowOperands(Numpy):
    """The numbers themselves are those of float32."""

    def cast(self, array: Any, dtype: str) -> np.ndarray:
        return np.asarray(array).astype(np.float32).astype(dtype)


class SaysSo(Numpy):
    """Float32, and it says so."""

    def product(self, a: Any, b: Any) -> Call:
        return lambda: a.astype(np.float32) @ b.astype(np.float32)


class Elsewhere(Numpy):
    def device(self, array: Any) -> str:
        return super().device(array).replace("cpu", "gpu:0")


class Nan(Numpy):
    def product(self, a: Any, b: Any) -> Call:
        return lambda: a @ b * np.nan


class Refusing(Numpy):
    def product(self, a: Any, b: Any) -> Call:
        raise NotImplementedError("no such operation\nand more")


class Asynchronous(Numpy):
    """A device that computes after a call has returned."""

    def __init__(self) -> None:
        self.device_itself = ThreadPoolExecutor(1)

    def product(self, a: Any, b: Any) -> Call:
        def later() -> np.ndarray:
            time.sleep(TAKES_S)
            return np.asarray(a @ b)

        return lambda: self.device_itself.submit(later)

    def cast(self, array: Any, dtype: str) -> np.ndarray:
        return super().cast(there(array), dtype)

    def dtype(self, array: Any) -> str:
        return super().dtype(there(array))

    def wait(self, arrays: Any) -> None:
        for each in arrays:
            there(each)

    def ready(self, arrays: Any) -> bool:
        return all(not isinstance(each, Future) or each.done() for each in arrays)


class Unsynchronised(Asynchronous):
    """Its timer is stopped when the work is launched."""

    def wait(self, arrays: Any) -> None:
        pass


def there(array: Any) -> Any:
    """An array when it is computed."""
    return array.result() if isinstance(array, Future) else array
