"""The ceilings of a CPU's roofline, measured: multiply-adds on registers, and bytes from memory."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.kernels.cpu.compiled import Library, compiled
from pipeline.kernels.cpu.cpp import function
from pipeline.machine.free_memory import free_bytes
from pipeline.report.table import size as in_bytes

HERE = Path(__file__).parent
BURSTS, PASSES = 30, 5  # measurements of either ceiling
BURST_S = 0.004  # of one of multiply-adds: shorter than the slice that a scheduler gives to another process
CORES = Path("/sys/devices/system/cpu")
TIMES = 4  # the caches, that an array has to fill so that it lies in memory
SMALLEST, LARGEST = 2**26, 2**29  # bytes of an array that is to lie in memory


@dataclass(frozen=True)
class Ceilings:
    """FLOP and bytes per second of each measurement; float32, on `threads` threads. A ceiling is the highest of them.

    Bytes as STREAM counts them: two arrays read and one written. `cores_had`: the share of the cores that its threads
    can use which this process had while it did multiply-adds; less than 1 where others are at work. `doubt`: why the
    bytes may be those of a cache; None: they are memory's.
    """

    flop_per_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
    threads: int
    cores_had: float
    doubt: str | None = None

    @property
    def peak(self) -> float:
        """FLOP per second."""
        return max(self.flop_per_s)

    @property
    def memory(self) -> float:
        """Bytes per second."""
        return max(self.bytes_per_s)


def probe() -> Library:
    """The program that measures. Raises UserError without a compiler."""
    return compiled(HERE / "probe.cpp", (HERE / "micro.h", HERE / "team.h"))


def measured(threads: int) -> Ceilings:
    """Takes about half a second. Raises UserError without a compiler."""
    library = probe()
    fused, triad = function(library, "fused"), function(library, "triad")
    of_a_round = function(library, "flop_of_a_round")
    of_a_round.restype = ctypes.c_long
    fused.restype = triad.restype = ctypes.c_double

    def multiply_add(rounds: int) -> float:
        return float(fused(ctypes.c_long(rounds), ctypes.c_int(threads)))

    rounds = _enough(multiply_add, 1000)
    flop = rounds * int(of_a_round()) * threads
    length = _array_bytes() // 4
    x, y, z = (np.full(length, value, np.float32) for value in (0, 1, 2))
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, z)]

    def stream() -> float:
        return float(triad(ctypes.c_long(length), *pointers, ctypes.c_int(threads)))

    stream()
    return Ceilings(
        flop_per_s=tuple(flop / multiply_add(rounds) for _ in range(BURSTS)),
        bytes_per_s=tuple(3 * x.nbytes / stream() for _ in range(PASSES)),
        threads=threads,
        cores_had=_share_of_cores(partial(multiply_add, BURSTS * rounds), min(threads, len(allowed_cores()))),
        doubt=doubt(x.nbytes, cache_bytes()),
    )


def doubt(array: int, caches: int) -> str | None:
    """Whether arrays of so many bytes may stay in caches of so many (0: it is not known how large they are)."""
    if not caches:
        return f"how large the caches are is not known, and an array has {in_bytes(array)}"
    if array < TIMES * caches:
        return f"an array has {in_bytes(array)}, less than {TIMES} times the {in_bytes(caches)} of the caches"
    return None


def allowed_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _share_of_cores(work: Callable[[], object], cores: int) -> float:
    """Processor time over wall time."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.process_time() - cpu) / (time.perf_counter() - began) / cores


def _enough(work: Callable[[int], float], number: int) -> int:
    """How many rounds take BURST_S."""
    while work(number) < BURST_S:
        number *= 2
    return number


def _array_bytes() -> int:
    """Four times the largest caches of all cores that this process may use, as far as memory allows."""
    wanted = min(max(TIMES * cache_bytes(), SMALLEST), LARGEST)
    return int(min(wanted, free_bytes() // 16))


def cache_bytes() -> int:
    """The largest caches (L3) that the allowed cores have among them, each counted once."""
    sizes = {}
    for core in allowed_cores():
        for cache in (CORES / f"cpu{core}/cache").glob("index[0-9]*"):
            kilobytes = int((cache / "size").read_text().strip().rstrip("K"))
            level, shared = ((cache / name).read_text() for name in ("level", "shared_cpu_list"))
            sizes[level, shared] = kilobytes * 1024
    last = max((level for level, _ in sizes), default="")
    return sum(size for (level, _), size in sizes.items() if level == last)
