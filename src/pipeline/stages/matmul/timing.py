"""The products of one framework on one device: verified first, then timed in rounds, with the ceiling in each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.backends.shared.form_bench import WrongResult
from pipeline.backends.shared.matrices import Matrices
from pipeline.raised import first_line
from pipeline.report.table import digits
from pipeline.stages.matmul.ceiling import Ceiling
from pipeline.stages.matmul.problem import Operands, Problem, Reference, operands

SAMPLE_S = 0.02  # that the products of a sample take together, where one does not take as long
MOST_CALLS = 2000
TRIAL, TRIALS = 64, 3  # size and number of the products that tell the rate of others


@dataclass
class Found:
    """What a product was found to be; None and empty where it did not come so far.

    `missing`: why it was not run. `fault`: why it is wrong, so that it has no times. `error`: of its result, as
    `Reference.compare` has it. `seen_dtype`, `device`: of its result. `samples`: seconds of a product, waited for, each
    the mean of so many `calls`; `with_copies`: with both operands copied to the device and the result back; `ceilings`:
    FLOP per second of multiply-adds in the same rounds.
    """

    dtype: str
    size: int
    missing: str | None = None
    fault: str | None = None
    error: float | None = None
    seen_dtype: str | None = None
    device: str | None = None
    samples: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    with_copies: list[float] = field(default_factory=list)
    ceilings: list[float | None] = field(default_factory=list)

    @property
    def problem(self) -> Problem:
        return Problem(self.dtype, self.size)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def lose_times(self, fault: str) -> None:
        """Note that the product is wrong, and drop its times."""
        self.fault, self.samples, self.calls, self.with_copies, self.ceilings = fault, [], [], [], []

    def add(self, other: Found) -> None:
        """The samples of the same product in another process; what is wrong there is wrong."""
        if other.fault and not self.fault:
            self.lose_times(other.fault)
        if self.fault or not other.samples:
            return
        if self.missing:  # too long for the first process, by a rate that was low for a while
            self.missing, self.error, self.seen_dtype, self.device = None, other.error, other.seen_dtype, other.device
        self.samples += other.samples
        self.calls += other.calls
        self.with_copies += other.with_copies
        self.ceilings += other.ceilings


class Timing:
    """`place`: the device that `matrices` multiplies on; of a GPU the copies to and from it are timed too.

    `longest`: a product that would take more seconds is not run.
    """

    def __init__(self, matrices: Matrices, place: str, ceiling: Ceiling, *, seed: int, longest: float) -> None:
        self.matrices, self.place, self.ceiling = matrices, place, ceiling
        self.seed, self.longest, self.copies = seed, longest, place != "cpu"
        self.found: list[Found] = []
        self.references: dict[Problem, Reference] = {}
        self.calls: dict[Problem, int] = {}  # products in a sample

    def verify(self, dtypes: Sequence[str], sizes: Sequence[int]) -> None:
        """Every product once, compared with float64's."""
        for dtype in dtypes:
            rate, fault, refusal = 0.0, None, self.matrices.refusal(dtype)
            if refusal is None:
                try:
                    rate = self._rate(dtype, max(sizes))
                except Exception as error:  # whatever a framework raises of an operation that it refuses
                    fault = first_line(error)
            for size in sizes:
                found = Found(dtype, size, refusal, fault)
                self.found.append(found)
                if rate:
                    self._verify(found, rate)

    def time(self) -> None:
        """One sample of each product that is right; one that goes wrong here loses its times."""
        for dtype in dict.fromkeys(problem.dtype for problem in self.references):
            ceiling = self.ceiling(dtype)
            for one in self.found:
                if one.dtype == dtype and one.problem in self.references:
                    self._round(one, ceiling)

    def _verify(self, found: Found, rate: float) -> None:
        about = found.problem.flop / rate
        if about > self.longest:
            found.missing = f"a product would take about {digits(about)} s, more than stage.longest={self.longest:g}"
            return
        try:
            made = operands(found.problem, self.seed)
            a, b = self._put(made)
            result = self._launched(a, b)
            found.seen_dtype, found.device = self.matrices.dtype(result), self.matrices.device(result)
            if found.seen_dtype != found.dtype:
                raise WrongResult(f"its result is {found.seen_dtype}, not {found.dtype}")
            if found.device != self.place:
                raise WrongResult(f"its result is on {found.device}, not on {self.place}")
            found.error = made.reference.compare(self.matrices.numbers(result))
            about = self._seconds(a, b, 1, made.reference)
            self.calls[found.problem] = min(MOST_CALLS, max(1, round(SAMPLE_S / about)))
        except WrongResult as error:
            found.fault = str(error)
        except Exception as error:  # whatever a framework raises of an operation that it refuses
            found.fault = first_line(error)
        else:
            self.references[found.problem] = made.reference.without_matrix()

    def _rate(self, dtype: str, largest: int) -> float:
        """FLOP per second of a product of twice whose size one may take too long, or of the largest size.

        Not of a small one: where another process has a core, threads that wait for each other take the time of a
        hundred such products, and of the larger ones' hardly a part. Where a larger one raises, it is the last rate:
        `_verify` finds the fault of that size.
        """
        size, rate = min(TRIAL, largest), 0.0
        while True:
            try:
                took = self._quickest(Problem(dtype, size))
            except Exception:  # whatever a framework raises; of the first size it is the dtype's fault
                if not rate:
                    raise
                return rate
            rate = Problem(dtype, size).flop / took
            if 8 * took > self.longest or size == largest:
                return rate
            size = min(2 * size, largest)

    def _quickest(self, problem: Problem) -> float:
        """Seconds of the quickest of TRIALS products, after one that is not counted."""
        a, b = self._put(operands(problem, self.seed))
        self._launched(a, b)
        return min(self._seconds_launched(a, b) for _ in range(TRIALS))

    def _round(self, found: Found, ceiling: float | None) -> None:
        """One sample, with operands that lie anew in memory: where they lie is a part of the spread."""
        reference, calls = self.references[found.problem], self.calls[found.problem]
        try:
            made = operands(found.problem, self.seed)
            a, b = self._put(made)
            self._launched(a, b)
            seconds = self._seconds(a, b, calls, reference)
            copied = self._seconds_with_copies(made, reference) if self._copies(found.dtype) else None
        except WrongResult as error:
            found.lose_times(str(error))
            del self.references[found.problem]
        except Exception as error:  # whatever a framework raises, such as of a device that is gone
            found.lose_times(f"when it was timed, {first_line(error)}")
            del self.references[found.problem]
        else:
            found.samples.append(seconds)
            found.calls.append(calls)
            found.ceilings.append(ceiling)
            if copied is not None:
                found.with_copies.append(copied)

    def _seconds(self, a: Any, b: Any, calls: int, reference: Reference) -> float:
        """Of a product that is waited for, the mean of so many. Raises WrongResult."""
        took, matrices = 0.0, self.matrices
        for _ in range(calls):
            began = time.perf_counter()
            result = matrices.product(a, b)
            matrices.wait([result])
            took += time.perf_counter() - began
            if not matrices.ready([result]):
                raise WrongResult("the timer was stopped before its result was computed")
        reference.compare_sums(matrices.numbers(result))
        return took / calls

    def _copies(self, dtype: str) -> bool:
        """The host's matrices are NumPy's, which has no bfloat16."""
        return self.copies and dtype != "bfloat16"

    def _seconds_with_copies(self, made: Operands, reference: Reference) -> float:
        """From operands in the host's memory, in the same dtype, to a result there. Raises WrongResult."""
        matrices, dtype = self.matrices, made.problem.dtype
        a, b = (each.astype(dtype) for each in (made.a, made.b))
        began = time.perf_counter()
        result = matrices.get(matrices.product(matrices.put(a, dtype), matrices.put(b, dtype)))
        took = time.perf_counter() - began
        reference.compare_sums(result.astype("float64"))
        return took

    def _seconds_launched(self, a: Any, b: Any) -> float:
        """Seconds that one product takes, for an idea of the rate."""
        began = time.perf_counter()
        self._launched(a, b)
        return time.perf_counter() - began

    def _put(self, made: Operands) -> tuple[Any, Any]:
        a, b = (self.matrices.put(each, made.problem.dtype) for each in (made.a, made.b))
        self.matrices.wait([a, b])
        return a, b

    def _launched(self, a: Any, b: Any) -> Any:
        """The product a·b, once it is computed."""
        result = self.matrices.product(a, b)
        self.matrices.wait([result])
        return result
