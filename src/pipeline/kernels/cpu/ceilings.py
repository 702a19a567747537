"""The ceilings of a CPU's roofline, measured: multiply-adds on registers, and bytes from memory by STREAM's kernels."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.errors import RunError, plural
from pipeline.kernels.cpu.compiled import Library, compiled
from pipeline.kernels.cpu.cpp import function
from pipeline.machine.free_memory import free_bytes
from pipeline.machine.others import allowed_cores
from pipeline.report.table import size as in_bytes

HERE = Path(__file__).parent
SOURCES = tuple(HERE / name for name in ("probe.cpp", "micro.h", "team.h"))
BURSTS, PASSES = 30, 5  # measurements of either ceiling
BURST_S = 0.004  # of one of multiply-adds: shorter than the slice that a scheduler gives to another process
CORES = Path("/sys/devices/system/cpu")
ALONE = 0.95  # of the cores: with less of them, other processes are at work
TIMES = 4  # the caches, that an array has to fill so that it lies in memory
SMALLEST, LARGEST = 2**26, 2**29  # bytes of an array that is to lie in memory
DTYPES = ("float32", "float64")
Y, Z, FACTOR = 1.0, 3.0, 3.0  # numbers by which every kernel below has another result
WRONG = -1.0  # that none has


class StreamKernel(NamedTuple):
    """`number`: the probe's. `arrays`: that it reads and writes. `result`: each number of it, of Y, Z and FACTOR."""

    number: int
    arrays: int
    result: float


FILL = 0
STREAM = {
    "copy": StreamKernel(1, 2, Y),
    "scale": StreamKernel(2, 2, FACTOR * Y),
    "add": StreamKernel(3, 3, Y + Z),
    "triad": StreamKernel(4, 3, Y + FACTOR * Z),
}


@dataclass(frozen=True)
class Ceilings:
    """FLOP and bytes per second of each measurement, of float32. A ceiling is the highest.

    Bytes as STREAM's triad counts them: two arrays read and one written. `cores_had`: the share of the cores that its
    threads can use which this process had while it did multiply-adds; less than 1 where others are at work. `doubt`:
    why the bytes may be those of a cache; None: they are memory's.
    """

    flop_per_s: tuple[float, ...]
    bytes_per_s: tuple[float, ...]
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
    return compiled(SOURCES[0], SOURCES[1:])


def placed_probe() -> Library:
    """The same, whose threads are kept on the cores that this process may use now."""
    library, order = probe(), np.array(cores_apart(), np.int32)
    function(library, "keep_on")(ctypes.c_void_p(order.ctypes.data), ctypes.c_int(order.size))
    return library


def cores_apart() -> list[int]:
    """The allowed cores, one of each physical core first, else by number, as where Linux does not say which share one.

    Threads that share one reach half of the peak that a scheduler, which spreads them, allows a kernel's.
    """
    first: dict[str, int] = {}
    for core in allowed_cores():
        siblings = CORES / f"cpu{core}/topology/thread_siblings_list"
        first.setdefault(siblings.read_text() if siblings.exists() else str(core), core)
    return sorted(allowed_cores(), key=lambda core: core not in first.values())


def measured(threads: int) -> Ceilings:
    """Of float32; takes about half a second. Raises UserError without a compiler."""
    streamed = stream(threads, "float32", ("triad",))
    flop_per_s, cores_had = multiply_adds(threads, "float32")
    return Ceilings(
        flop_per_s=flop_per_s,
        bytes_per_s=streamed.bytes_per_s["triad"],
        cores_had=cores_had,
        doubt=streamed.doubt,
    )


def multiply_adds(threads: int, dtype: str) -> tuple[tuple[float, ...], float]:
    """`flop_per_s` and `cores_had` of Ceilings, without bytes from memory. Raises UserError without a compiler."""
    work = MultiplyAdds(threads, dtype)
    rounds = _enough(work.seconds)
    rates = tuple(work.flop(rounds) / work.seconds(rounds) for _ in range(BURSTS))
    return rates, _share_of_cores(partial(work.seconds, BURSTS * rounds), min(threads, len(allowed_cores())))


def cores_had(threads: int) -> float:
    """That of Ceilings alone, now. Raises UserError without a compiler."""
    return multiply_adds(threads, "float32")[1]


def others_at_work(had: float, cores: int) -> str | None:
    """What `cores_had` says of rates and shares, where it is less than ALONE."""
    if had >= ALONE:
        return None
    return (
        f"other processes are at work: they left {had:.0%} of {plural(cores, 'core')}; "
        "rates are lower than what this machine can do, and shares are uncertain"
    )


class MultiplyAdds:
    """The probe's multiply-adds on registers. Raises UserError without a compiler."""

    def __init__(self, threads: int, dtype: str) -> None:
        library, self.bytes, self.threads = placed_probe(), number(dtype).itemsize, threads
        self.fused, of_a_round = function(library, "fused"), function(library, "flop_of_a_round")
        self.fused.restype, of_a_round.restype = ctypes.c_double, ctypes.c_long
        self.of_a_round = int(of_a_round(ctypes.c_int(self.bytes)))
        self.totals = np.zeros(threads)

    def flop(self, rounds: int) -> int:
        """Operations of so many rounds, of all threads."""
        return rounds * self.of_a_round * self.threads

    def seconds(self, rounds: int) -> float:
        """What so many rounds take. Raises RunError where they do not give what they have to, as fewer would."""
        sizes = ctypes.c_long(rounds), ctypes.c_int(self.bytes)
        took = float(self.fused(*sizes, ctypes.c_void_p(self.totals.ctypes.data), ctypes.c_int(self.threads)))
        added = rounds * self.of_a_round // 2  # each of the chains, two operations a round, has added 1 in each
        if not (self.totals == added).all():
            raise RunError(f"the probe's multiply-adds give {self.totals.tolist()}, not {added}")
        return took


@dataclass(frozen=True)
class Streamed:
    """Bytes per second of each measurement, by kernel of STREAM; of arrays of `array` bytes. `doubt` as in Ceilings."""

    bytes_per_s: Mapping[str, tuple[float, ...]]
    array: int
    doubt: str | None


def stream(threads: int, dtype: str = "float64", names: Sequence[str] = tuple(STREAM)) -> Streamed:
    """STREAM's kernels: J. McCalpin, "Memory Bandwidth and Machine Balance", 1995.

    Raises UserError without a compiler, RunError where a kernel computes something else.
    """
    run = function(placed_probe(), "stream")
    run.restype = ctypes.c_double
    width = number(dtype).itemsize
    length = array_bytes() // width
    x, y, z = (np.empty(length, dtype) for _ in range(3))
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, z)]

    def seconds(kernel: int, *arrays: ctypes.c_void_p, factor: float) -> float:
        head = ctypes.c_int(kernel), ctypes.c_long(length), ctypes.c_int(width)
        return float(run(*head, *arrays, ctypes.c_double(factor), ctypes.c_int(threads)))

    def timed(kernel: int) -> float:
        """Over an x that holds another number: so x shows what the pass that is timed has written."""
        seconds(FILL, *pointers, factor=WRONG)
        return seconds(kernel, *pointers, factor=FACTOR)

    for pointer, value in zip(pointers, (WRONG, Y, Z), strict=True):
        seconds(FILL, pointer, *pointers[1:], factor=value)
    found = {}
    for name in names:
        kernel = STREAM[name]
        seconds(kernel.number, *pointers, factor=FACTOR)
        found[name] = tuple(kernel.arrays * x.nbytes / timed(kernel.number) for _ in range(PASSES))
        if not x.min() == x.max() == kernel.result:
            raise RunError(f"the probe's {name} gives {x.min()} to {x.max()}, not {kernel.result}")
    return Streamed(found, x.nbytes, doubt(x.nbytes, cache_bytes()))


def number(dtype: str) -> np.dtype:
    """NumPy's dtype. Raises ValueError for one that the probe does not know."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype}: choose from {', '.join(DTYPES)}")
    return np.dtype(dtype)


def doubt(array: int, caches: int) -> str | None:
    """Whether arrays of so many bytes may stay in caches of so many (0: it is not known how large they are)."""
    if not caches:
        return f"the size of the caches is not known, and an array has {in_bytes(array)}"
    if array < TIMES * caches:
        return f"an array has {in_bytes(array)}, less than {TIMES} times the {in_bytes(caches)} of the caches"
    return None


def _share_of_cores(work: Callable[[], object], cores: int) -> float:
    """Processor time over wall time."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return (time.process_time() - cpu) / (time.perf_counter() - began) / cores


def _enough(work: Callable[[int], float]) -> int:
    """How many rounds take BURST_S."""
    number = 1000
    while work(number) < BURST_S:
        number *= 2
    return number


def array_bytes() -> int:
    """Four times the largest caches of all cores that this process may use, as far as memory allows."""
    wanted = min(max(TIMES * cache_bytes(), SMALLEST), LARGEST)
    return int(min(wanted, free_bytes() // 16))


def cache_bytes() -> int:
    """The largest caches (L3) that the allowed cores have among them, each counted once; 0: it is not known how large
    they are, as in a virtual machine whose firmware does not say it."""
    caches = {}
    try:
        for core in allowed_cores():
            for cache in (CORES / f"cpu{core}/cache").glob("index[0-9]*"):
                level, shared = ((cache / name).read_text() for name in ("level", "shared_cpu_list"))
                caches[level, shared] = cache / "size"  # in KiB, as `32K`
        last = max((level for level, _ in caches), default="")
        sizes = [file.read_text().strip().rstrip("K") for (level, _), file in caches.items() if level == last]
    except FileNotFoundError:
        return 0
    return sum(map(int, sizes)) << 10
