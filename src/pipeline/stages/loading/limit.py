"""How fast large arrays are copied, to compare loaders with: small sets lie in caches, which are faster."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from pipeline.backends.shared.load_bench import DTYPE
from pipeline.kernels.cpu.ceilings import TIMES, cache_bytes, doubt
from pipeline.machine.free_memory import free_bytes

COPIES = 5
SMALLEST, LARGEST = 1 << 27, 1 << 29  # bytes that are copied at once


@dataclass(frozen=True)
class Copied:
    """Bytes per second, read and written together, of each copy; by `threads`. `doubt`: why they may be a cache's."""

    bytes_per_s: tuple[float, ...]
    threads: int
    doubt: str | None

    def images_per_s(self, x: np.ndarray) -> float:
        """How many examples x (N, ...) can be read as they are stored and written as a model takes them."""
        return max(self.bytes_per_s) / moved_bytes(x)


def moved_bytes(x: np.ndarray) -> int:
    """Of one example of x (N, ...): read as it is stored, and written once."""
    return int(x[0].nbytes + x[0].size * np.dtype(DTYPE).itemsize)


def copied(threads: int) -> Copied:
    """Copy an array that is larger than the caches, a part by each thread; NumPy lets go of the interpreter."""
    size = int(min(max(TIMES * cache_bytes(), SMALLEST), LARGEST, free_bytes() // 8))
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    rates = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(COPIES + 1):
            began = time.perf_counter()
            list(pool.map(lambda part: np.copyto(*part), parts))
            rates.append(2 * size / (time.perf_counter() - began))
    return Copied(tuple(rates[1:]), threads, doubt(size, cache_bytes()))
