"""What a framework does at most on a device: matrix products and convolutions by dtype, and how soon a tiny one.

Everything is verified before it is timed: the operands are uniform numbers that the framework has rounded, the result
is compared with NumPy's of the same rounded operands in float64, and its dtype and device are looked at.
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline.backends.shared.arrays import Arrays
from pipeline.backends.shared.form_bench import WrongResult, said_of
from pipeline.machine.blas import SPINS_S, norm
from pipeline.machine.ceilings import Ceiling
from pipeline.machine.energy import Meter
from pipeline.machine.precision import ROUNDOFF

SIZES = (256, 512, 1024, 2048, 4096, 8192)  # N of products; the largest that does not take LONGEST_S
LONGEST_S = 0.25  # of one product, by eight times what that of half its size took
SAMPLE_S = 0.05  # of a sample, which is one operation at least
COMPARED = 256  # rows of a larger product that are compared
IMAGES, PIXELS, CHANNELS = 16, 32, 64  # of the convolution
TINY_CALLS = 100  # in a sample
ENERGY_S = 1.0  # of operations in a row while the meter runs: it is read a thousand times a second at most

Call = Callable[[], Any]


class Operations(Arrays, ABC):
    """A framework's arrays and operations on one device.

    `name`: the framework's. `missing`: what it has not, by operation or dtype, in words. Operations may return before
    their results are computed.
    """

    name: ClassVar[str]
    missing: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def cast(self, array: Any, dtype: str) -> Any:
        """The array in another dtype, by its name in NumPy."""

    @abstractmethod
    def product(self, a: Any, b: Any) -> Call:
        """What computes the product of two matrices."""

    @abstractmethod
    def add(self, a: Any, b: Any) -> Call:
        """What computes the sum of two vectors."""

    def convolution(self, x: Any, w: Any) -> Call:
        """x (images, height, width, channels) with w (3, 3, channels, filters), padded with zeros to x's size."""
        raise NotImplementedError


class Case(NamedTuple):
    """An operation with operands. `terms`: that are summed for a number of the result, `flop` for all. `rows`: of the
    result's first axis, those that `expected` has, in float64."""

    of: str
    run: Call
    flop: int
    terms: int
    rows: slice
    expected: np.ndarray
    dtype: str


class Timed(NamedTuple):
    """A case that is right, and so is timed, by samples of so many calls."""

    case: Case
    calls: int


class Bench:
    """All that one framework is asked on `place`. `meter`: of the device's energy; None: it does not say."""

    def __init__(self, operations: Operations, place: str, meter: Meter | None = None) -> None:
        self.operations, self.place, self.meter = operations, place, meter
        self.generator = np.random.default_rng(0)
        self.found: dict[str, Ceiling] = {}
        self.timed: dict[str, Timed] = {}

    def measured(self, rounds: int) -> Iterator[list[Ceiling]]:
        """Verify all, then time what is right, in turns. One that goes wrong on the way has no times.

        Yields all that was found so far, again after each round: the process may be ended in the next.
        """
        lacking = self.operations.missing
        for what, make in {"product": self._largest_product, "convolution": self._convolution}.items():
            if what in lacking:
                self._verify(Ceiling(name=self._named(what), unit="FLOP/s", missing=lacking[what]), make, "")
                continue
            for dtype in ROUNDOFF:
                ceiling = Ceiling(name=self._named(f"{what}/{dtype}"), unit="FLOP/s", missing=lacking.get(dtype))
                self._verify(ceiling, make, dtype)
        self._verify(Ceiling(name=self._named("launch"), unit="s"), self._tiny, "float32")
        for _ in range(rounds):
            for name, one in [*self.timed.items()]:
                with self._faults(name):
                    self._sample(name, one)
            yield [*self.found.values()]
        if self.meter is not None:
            for name, one in [*self.timed.items()]:
                if "/product/" in name:
                    self._add_energy(name, one.case, self.meter)
            yield [*self.found.values()]

    def _verify(self, ceiling: Ceiling, make: Callable[[str], tuple[Case, float]], dtype: str) -> None:
        self.found[ceiling.name] = ceiling
        if ceiling.missing:
            return
        with self._faults(ceiling.name):
            case, seconds = make(dtype)
            calls = TINY_CALLS if ceiling.unit == "s" else math.ceil(SAMPLE_S / seconds)
            self.timed[ceiling.name] = Timed(case, calls)

    @contextlib.contextmanager
    def _faults(self, name: str) -> Iterator[None]:
        """What goes wrong is what was found."""
        try:
            yield
        except Exception as error:  # whatever a framework raises of an operation that it does not have
            self.found[name] = replace(self.found[name], fault=said_of(error), samples=())
            self.timed.pop(name, None)

    def _sample(self, name: str, one: Timed) -> None:
        """The rate, or seconds, of a sample, whose last result is compared."""
        seconds, result = self._seconds(one.case.run, one.calls)
        error, seen = self._compared(one.case, result)
        before = self.found[name]
        samples = (*before.samples, seconds if before.unit == "s" else one.case.flop / seconds)
        self.found[name] = replace(before, of=one.case.of, error=error, seen=seen, samples=samples)

    def _add_energy(self, name: str, case: Case, meter: Meter) -> None:
        """Measure the energy of a product that was timed, in J/FLOP."""
        energy = name.replace("/product/", "/energy/")
        self.found[energy] = replace(self.found[name], name=energy, unit="J/FLOP", samples=())
        with self._faults(energy):  # its own: the product is right and has its samples
            self.found[energy] = replace(self.found[energy], samples=(self._energy(case, meter),))

    def _largest_product(self, dtype: str) -> tuple[Case, float]:
        for size in SIZES:
            case = self._product(size, dtype)
            self.compare(case)
            time.sleep(SPINS_S)  # what was expected comes of BLAS
            seconds = min(self._seconds(case.run, 1)[0] for _ in range(2))
            if size == SIZES[-1] or 8 * seconds > LONGEST_S:
                break
        return case, seconds

    def _product(self, size: int, dtype: str) -> Case:
        (a, a_wide), (b, b_wide) = (self._operand((size, size), dtype) for _ in range(2))
        rows = slice(None, None, max(1, size // COMPARED))
        run = self.operations.product(a, b)
        return Case(f"{size} × {size}", run, 2 * size**3, size, rows, a_wide[rows] @ b_wide, dtype)

    def _convolution(self, dtype: str) -> tuple[Case, float]:
        x, x_wide = self._operand((IMAGES, PIXELS, PIXELS, CHANNELS), dtype)
        w, w_wide = self._operand((3, 3, CHANNELS, CHANNELS), dtype)
        terms = 9 * CHANNELS
        flop = 2 * IMAGES * PIXELS**2 * CHANNELS * terms
        of = f"{IMAGES} × {PIXELS}² × {CHANNELS}"
        run = self.operations.convolution(x, w)
        case = Case(of, run, flop, terms, slice(None), convolved(x_wide, w_wide), dtype)
        self.compare(case)
        return case, min(self._seconds(run, 1)[0] for _ in range(2))

    def _tiny(self, dtype: str) -> tuple[Case, float]:
        (a, a_wide), (b, b_wide) = (self._operand((1,), dtype) for _ in range(2))
        case = Case("1 number", self._each(self.operations.add(a, b)), 1, 1, slice(None), a_wide + b_wide, dtype)
        self.compare(case)
        return case, 0.0

    def _each(self, run: Call) -> Call:
        """The call, followed by a wait for its result."""

        def waited() -> Any:
            result = run()
            self.operations.wait([result])
            return result

        return waited

    def _operand(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, np.ndarray]:
        """Numbers between -1 and 1 as the framework has rounded them, on the device and in float64.

        Raises WrongResult.
        """
        drawn = self.generator.uniform(-1, 1, shape)
        array = self.operations.cast(self.operations.put(drawn), dtype)
        wide = self._wide(array)
        if not np.abs(wide - drawn).max() <= ROUNDOFF[dtype]:
            raise WrongResult(f"numbers are rounded by {np.abs(wide - drawn).max():.1e}, more than {dtype} rounds them")
        return array, wide

    def _wide(self, array: Any) -> np.ndarray:
        return np.asarray(self.operations.get(self.operations.cast(array, "float64")), np.float64)

    def compare(self, case: Case) -> None:
        """Compute the case once and compare the result with NumPy's. Raises WrongResult."""
        result = case.run()
        self.operations.wait([result])
        self._compared(case, result)

    def _compared(self, case: Case, result: Any) -> tuple[float, str]:
        """How far a result is from NumPy's, and its dtype and device. Raises WrongResult."""
        dtype, device = self.operations.dtype(result), self.operations.device(result)
        if dtype != case.dtype:
            raise WrongResult(f"computes in {dtype}, not in {case.dtype}")
        if device != self.place:
            raise WrongResult(f"ran on {device}, not on {self.place}")
        found = self._wide(result)[case.rows]
        if found.shape != case.expected.shape:
            raise WrongResult(f"gives the shape {found.shape}, not {case.expected.shape}")
        error = norm(found - case.expected) / norm(case.expected)
        limit = bound(case.dtype, case.terms)
        if not error <= limit:  # so that NaN is wrong
            raise WrongResult(f"differs from NumPy's by {error:.1e} of its norm; {case.dtype} by {limit:.1e} at most")
        return error, f"{dtype} on {device}"

    def _seconds(self, run: Call, calls: int) -> tuple[float, Any]:
        """Of a call, and the last one's result.

        Raises WrongResult where that was not there when the timer was stopped.
        """
        began = time.perf_counter()
        for _ in range(calls):
            result = run()
        self.operations.wait([result])
        took = time.perf_counter() - began
        if not self.operations.ready([result]):
            raise WrongResult("the timer was stopped before the result was computed")
        return took / calls, result

    def _energy(self, case: Case, meter: Meter) -> float:
        """Joules of an operation, with all that the device takes in that time."""
        self.operations.wait([case.run()])
        before, ends, calls = meter(), time.perf_counter() + ENERGY_S, 0
        while time.perf_counter() < ends:
            self.operations.wait([case.run()])
            calls += 1
        return (meter() - before) / (calls * case.flop)

    def _named(self, what: str) -> str:
        return f"{self.place}/{self.operations.name}/{what}"


def bound(dtype: str, terms: int) -> float:
    """Twice what rounding errors of independent signs come to in a sum of so many terms, over its norm. Sums of short
    dtypes are kept in float32, and rounded once: one that is kept in the short dtype is wrong.

    Source: N. Higham and T. Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019.
    """
    u, wide = ROUNDOFF[dtype], ROUNDOFF["float32"]
    return 2 * (u + math.sqrt(terms) * wide) if u > wide else 2 * math.sqrt(terms) * u


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The reference: x (images, height, width, channels) with w (3, 3, channels, filters), padded with zeros."""
    height, width = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.sum([padded[:, i : i + height, j : j + width] @ w[i, j] for i in range(3) for j in range(3)], axis=0)
