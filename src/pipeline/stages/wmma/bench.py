"""The bench: which kernels run here, which of them are right, and how long they take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.kernels.cpu.ceilings import Ceilings, measured
from pipeline.kernels.cpu.compiled import missing_compiler
from pipeline.kernels.gemm import Gemm, Operands, operands
from pipeline.kernels.timing import Times, in_turns, median_rate
from pipeline.kernels.verify import Case, Prepare, Verdict, all_cases, verify
from pipeline.runs.run import Run

ALONE = 0.95  # of the cores: with less of them, other processes are at work
TRIAL = 128  # N of the product that gives a first idea of a kernel's rate


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be found out: `kernels` on `problems`, the smallest first, on `cores` of a CPU.

    `rounds`: samples of each; `seconds`: that these may take of a kernel at a size. `longest`: seconds of a single
    product, above which it is not run.
    """

    kernels: tuple[Kernel, ...]
    problems: tuple[Gemm, ...]
    cores: int
    rounds: int
    seconds: float
    longest: float
    seed: int

    def problem(self, size: int) -> Gemm:
        """The product of matrices N × N, otherwise like the others."""
        return replace(self.problems[0], m=size, n=size, k=size)


class Bench:
    """What was found, as it is found.

    `verdicts`: of each kernel that was run at all, by name. `times`: of each problem, by the kernel's name.
    `skipped`: of each problem and kernel that was not timed, why not. `absent`: why a kernel takes no part.
    `facts`: of each kernel, how it was made.
    """

    def __init__(self, plan: Plan, run: Run) -> None:
        self.plan, self.run = plan, run
        self.verdicts: dict[str, Verdict] = {}
        self.errors: dict[tuple[Gemm, str], Verdict] = {}
        self.times: dict[Gemm, dict[str, Times]] = {}
        self.skipped: dict[tuple[Gemm, str], str] = {}
        self.absent: dict[str, str] = {}
        self.facts: dict[str, dict[str, object]] = {}
        self.seconds_per_flop: dict[str, float] = {}  # of the largest product that was timed
        self.ceilings: Ceilings | None = None
        first = plan.problems[0]
        for kernel in plan.kernels:
            refusal, missing = kernel.refusal(first), kernel.missing()
            if refusal or missing:
                self.absent[kernel.name] = refusal or f"needs {missing}"

    @property
    def timed(self) -> dict[str, Kernel]:
        """The kernels that passed and can be timed here, by name."""
        return {
            kernel.name: kernel
            for kernel in self.plan.kernels
            if kernel.name not in self.absent and self.verdicts[kernel.name].fault is None
        }

    @property
    def yardstick(self) -> str | None:
        """The kernel that the others are shown as a share of."""
        return next((name for name, kernel in self.timed.items() if kernel.yardstick), None)

    @property
    def fastest(self) -> str | None:
        """The fastest kernel but the yardstick at the largest size at which one was timed."""
        for gemm in reversed(self.plan.problems):
            names = [name for name in self.times.get(gemm, {}) if name != self.yardstick]
            if names:
                return min(names, key=lambda name: self.times[gemm][name].median)
        return None

    def blas_threads(self) -> contextlib.AbstractContextManager[object]:
        """NumPy's BLAS on as many threads as the other kernels."""
        from threadpoolctl import threadpool_limits

        return threadpool_limits(self.plan.cores, user_api="blas")

    def verify(self) -> None:
        """Compile all, on all cores; then run each on every class of problems."""
        small = operands(self.plan.problem(TRIAL), self.plan.seed)
        running = [kernel for kernel in self.plan.kernels if kernel.name not in self.absent]
        with ThreadPoolExecutor(self.plan.cores) as pool:
            launches = list(pool.map(self._prepared(small), running))
        for kernel, launch in zip(running, launches, strict=True):
            self.facts[kernel.name] = dict(launch.facts)
            self._judge(kernel, all_cases(small.gemm.dtype), partial(kernel.prepare, threads=self.plan.cores))
            if self.verdicts[kernel.name].fault is None:
                launch.run()
                self.seconds_per_flop[kernel.name] = launch.seconds(1) / small.gemm.flop
        for kernel in self.plan.kernels:
            rehearsed = kernel.rehearse(small) if kernel not in running and not kernel.refusal(small.gemm) else None
            if rehearsed is not None:
                self.facts[kernel.name] = dict(rehearsed.facts)
                self._judge(kernel, all_cases(small.gemm.dtype), kernel.rehearse)

    def measure_ceilings(self) -> None:
        """Of the processor, where there is a compiler to measure it."""
        if missing_compiler() is not None:
            return
        self.ceilings = measured(self.plan.cores)
        if self.ceilings.cores_had < ALONE:
            self.run.note(
                f"other processes are at work: the probe had {self.ceilings.cores_had:.0%} of {self.plan.cores} cores; "
                "rates are lower than what this machine can, and shares are uncertain"
            )

    def time(self, problems: Sequence[Gemm], names: Collection[str] = ()) -> None:
        """Check the kernels (of `names`, or all that are right) at each size, then time all of that in turns."""
        launches: dict[tuple[Gemm, str], Launch] = {}
        expected: dict[tuple[Gemm, str], float] = {}
        for gemm in problems:
            for name, kernel in list(self.timed.items()):
                if names and name not in names:
                    continue
                seconds = gemm.flop * self.seconds_per_flop[name]
                if seconds > self.plan.longest:
                    self.skipped[gemm, name] = f"one product would take about {seconds:.1f} s"
                elif self._is_right(gemm, kernel):
                    expected[gemm, name] = seconds
            made = operands(gemm, self.plan.seed)
            for name in (name for of, name in expected if of == gemm):
                launches[gemm, name] = self._prepared(made)(self.timed[name])
                launches[gemm, name].run()
            self.times.setdefault(gemm, {})
        for (gemm, name), found in in_turns(launches, expected, self.plan.rounds, self.plan.seconds).items():
            self.times[gemm][name] = found
            self.seconds_per_flop[name] = found.median / gemm.flop

    def _is_right(self, gemm: Gemm, kernel: Kernel) -> bool:
        problem: Case = ("the size that is timed", gemm, "uniform", False)
        found = verify(kernel, [problem], partial(kernel.prepare, threads=self.plan.cores), self.plan.seed)
        self.errors[gemm, kernel.name] = found
        if found.fault:
            self._wrong(kernel, found)
        return found.fault is None

    def rate(self, gemm: Gemm, name: str, *, sustained: bool = False) -> float | None:
        """GFLOP/s by the median; None where it was not timed."""
        times = self.times.get(gemm, {}).get(name)
        return None if times is None else median_rate(gemm.flop, times.sustained if sustained else times.burst)

    def share(self, gemm: Gemm, name: str) -> float | None:
        """Of the yardstick's rate, by the sustained medians."""
        ours = self.rate(gemm, name, sustained=True)
        theirs = self.rate(gemm, self.yardstick, sustained=True) if self.yardstick else None
        return None if ours is None or theirs is None else ours / theirs

    def _prepared(self, made: Operands) -> Callable[[Kernel], Launch]:
        return lambda kernel: kernel.prepare(made, self.plan.cores)

    def _judge(self, kernel: Kernel, problems: Sequence[Case], prepare: Prepare) -> None:
        """Verify a kernel, and say so at once where it is wrong."""
        verdict = self.verdicts[kernel.name] = verify(kernel, problems, prepare, self.plan.seed)
        if verdict.fault:
            self._wrong(kernel, verdict)

    def _wrong(self, kernel: Kernel, verdict: Verdict) -> None:
        self.verdicts[kernel.name] = verdict
        self.run.say(f"{kernel.name}: WRONG, so it is not timed: {verdict.fault}")
