"""Products of matrices of which one is right; the others show what has to be found out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from pipeline.backends.shared import matrices_numpy

PRODUCT_S = 0.002  # that a product takes on the slow device


class Right(matrices_numpy.Matrices):
    """NumPy's."""


class Transposed(Right):
    """Of B, whose shape does not show it."""

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a @ b.T


class Narrow(Right):
    """In float32, called what was asked for."""

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)


class Tf32(Right):
    """Of operands of which ten bits are left."""

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a.astype(np.float16).astype(a.dtype)) @ (b.astype(np.float16).astype(a.dtype))


class Float32(Right):
    """In float32, and says so."""

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a.astype(np.float32) @ b.astype(np.float32)


class Nan(Right):
    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = a @ b
        result[-1, 0] = np.nan
        return result


class OneElement(Right):
    """Wrong in one element, by as much as the norm of the whole hides."""

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = a @ b
        result[3, 5] += result.dtype.type(5e-14)
        return result


class Elsewhere(Right):
    """On another device than was asked for."""

    def device(self, array: Any) -> str:  # noqa: ARG002
        return "gpu:0"


class Refusing(Right):
    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        raise NotImplementedError("no such operation\nand more")


class Counted(Right):
    """Right for so many products."""

    right = 6  # those of the trial, the one that is compared, the one that is timed once

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        self.right -= 1
        return a @ b if self.right >= 0 else self.afterwards(a.shape)

    def afterwards(self, shape: tuple[int, ...]) -> np.ndarray:
        """Nothing."""
        return np.zeros(shape)


class Vanishing(Counted):
    """A device that is gone while it is timed."""

    def afterwards(self, shape: tuple[int, ...]) -> np.ndarray:  # noqa: ARG002
        raise RuntimeError("device lost")


class Launched(Right):
    """A device that computes by itself, and takes its time."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)

    def product(self, a: np.ndarray, b: np.ndarray) -> Any:
        return self.thread.submit(self._computed, a, b)

    def wait(self, arrays: Sequence[Any]) -> None:
        for one in arrays:
            computed(one)

    def ready(self, arrays: Sequence[Any]) -> bool:
        return all(one.done() for one in arrays if isinstance(one, Future))

    def numbers(self, array: Any) -> np.ndarray:
        return super().numbers(computed(array))

    def dtype(self, array: Any) -> str:
        return super().dtype(computed(array))

    def _computed(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        time.sleep(PRODUCT_S)
        return a @ b


class Unsynchronised(Launched):
    """The same, and whoever waits for it does not wait."""

    def wait(self, arrays: Sequence[Any]) -> None:
        """Too early."""


class Second(Right):
    """A second device, from which a product takes longer."""

    def device(self, array: Any) -> str:  # noqa: ARG002
        return "cpu:1"


class Copying(Right):
    """A first device, whose products copy what lies on the second."""

    def __init__(self, away: list[np.ndarray]) -> None:
        self.away = away

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if any(b is one for one in self.away):
            time.sleep(PRODUCT_S)
        return a @ b

    def moved(self, array: np.ndarray) -> np.ndarray:
        time.sleep(PRODUCT_S)
        return array.copy()


class Strict(Copying):
    """A first device that raises instead."""

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if any(b is one for one in self.away):
            raise ValueError("operands on two devices")
        return a @ b


class Full(Copying):
    """A first device that has no memory left once both operands lie on it."""

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:  # noqa: ARG002
        raise MemoryError("4 GiB")


class Away(Second):
    """The second device, which notes what it has."""

    def __init__(self) -> None:
        self.held: list[np.ndarray] = []

    def put(self, array: np.ndarray, dtype: str | None = None) -> np.ndarray:
        self.held.append(super().put(array, dtype))
        return self.held[-1]


class WrongBlas(np.ndarray):
    """A matrix of float64 whose products are wrong in one element."""

    def __matmul__(self, other: Any) -> Any:
        result = np.asarray(self) @ np.asarray(other)
        if self.dtype == np.float64 and result.ndim == 2:
            result[0, 0] += 1e-9
        return result


def computed(array: Any) -> np.ndarray:
    """What a future holds, or the array."""
    return array.result() if isinstance(array, Future) else array


def matrices(place: str, limit: int | None) -> Right:  # noqa: ARG001
    """As a framework's module has it."""
    return Narrow()
