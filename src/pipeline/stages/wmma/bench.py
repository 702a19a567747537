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
from pipeline.kernels.verify import Case, Prepare, Verdict, all_cases, is_ours, right, verify
from pipeline.runs.run import Run

ALONE = 0.95  # of the cores: with less of them, other processes are at work
MEASURED = "fp32"  # what the ceilings are those of
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

    def taken(self, kernel: Kernel) -> list[Gemm]:
        """The problems that a kernel does not refuse."""
        return [gemm for gemm in self.problems if kernel.refusal(gemm) is None]

    def problem(self, size: int) -> Gemm:
        """The product of matrices N × N, otherwise like the others."""
        return replace(self.problems[0], m=size, n=size, k=size)


class Bench:
    """What was found, as it is found: verify everything, then time.

    `verdicts`: of each kernel that was run at all, by name. `times`: of each problem, by the kernel's name;
    `times_around`: those of padding.py.
    `skipped`: of each problem and kernel that was not timed, why not. `absent`: why a kernel takes no part.
    `facts`: of each kernel, how it was made.
    """

    def __init__(self, plan: Plan, run: Run) -> None:
        self.plan, self.run = plan, run
        self.verdicts: dict[str, Verdict] = {}
        self.errors: dict[tuple[Gemm, str], Verdict] = {}
        self.times: dict[Gemm, dict[str, Times]] = {gemm: {} for gemm in plan.problems}
        self.times_around: dict[Gemm, dict[str, Times]] = {}
        self.skipped: dict[tuple[Gemm, str], str] = {}
        self.absent: dict[str, str] = {}
        self.facts: dict[str, dict[str, object]] = {}
        self.fastest_run: dict[str, tuple[Gemm, float]] = {}  # the last product that was verified, and its seconds
        self.ceilings: Ceilings | None = None
        for kernel in plan.kernels:
            refusal, missing = kernel.refusal(plan.problems[0]), kernel.missing()
            if missing or not plan.taken(kernel):
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
        """Compile ours, on all cores; then run each kernel on every class of problems, then at each size."""
        trial = self.plan.problem(TRIAL)
        problems = [*all_cases(trial.dtype), _case(trial)]
        running = [kernel for kernel in self.plan.kernels if kernel.name not in self.absent]
        small = operands(replace(trial, m=1, n=1, k=1), self.plan.seed)
        ours = [kernel for kernel in running if is_ours(kernel) and kernel.refusal(small.gemm) is None]
        with ThreadPoolExecutor(self.plan.cores) as pool:
            list(pool.map(self._prepared(small), ours))
        for kernel in running:
            mine = partial(kernel.prepare, threads=self.plan.cores)
            if any(kernel.refusal(gemm) is None for _, gemm, _, _ in problems):
                self._judge(kernel, problems, mine)
            else:  # its sizes say whether it is right
                self.verdicts[kernel.name] = Verdict(0, 0.0, 0.0)
        for kernel in self.plan.kernels:
            if kernel not in running and self.plan.taken(kernel) and kernel.rehearses():
                self._judge(kernel, all_cases(trial.dtype), kernel.rehearse)
        for gemm in self.plan.problems:
            self.verify_at(gemm)

    def measure_ceilings(self) -> None:
        """Of the processor, where there is a compiler to measure it."""
        if missing_compiler() is not None or self.plan.problems[0].dtype != MEASURED:
            return
        self.ceilings = measured(self.plan.cores)
        if self.ceilings.cores_had < ALONE:
            self.run.note(
                f"other processes are at work: the probe had {self.ceilings.cores_had:.0%} of {self.plan.cores} cores; "
                "rates are lower than what this machine can, and shares are uncertain"
            )

    def verify_at(self, gemm: Gemm, names: Collection[str] = ()) -> None:
        """The kernels (of `names`, or all that are right so far) at a size, or why one is not run there."""
        for name, kernel in list(self.timed.items()):
            if names and name not in names:
                continue
            refusal = kernel.refusal(gemm) or self._too_long(gemm, kernel)
            if refusal:
                self.skipped[gemm, name] = refusal
                continue
            prepare = partial(kernel.prepare, threads=self.plan.cores)
            found = verify(kernel, [_case(gemm)], prepare, self.plan.seed, self.plan.longest)
            self.errors[gemm, name] = found
            self.fastest_run[name] = gemm, found.seconds
            self.facts[name] = {**found.facts, **self.facts.get(name, {})}
            if found.fault:
                self._wrong(kernel, found)
            else:
                before = self.verdicts[name]
                self.verdicts[name] = replace(before, n=before.n + 1)

    def _too_long(self, gemm: Gemm, kernel: Kernel) -> str | None:
        """By the last product that was verified; never of the yardstick, which the others are a share of."""
        if kernel.yardstick or kernel.name not in self.fastest_run:
            return None
        last, seconds = self.fastest_run[kernel.name]
        about = seconds * gemm.flop / last.flop
        if about <= self.plan.longest:
            return None
        return f"one product would take about {about:.1f} s, by the {seconds:.2g} s of {last}"

    def time(self, problems: Sequence[Gemm], names: Collection[str] = ()) -> dict[Gemm, dict[str, Times]]:
        """Those verified at each size (of `names`, or all), in turns; one whose D is wrong afterwards is dropped."""
        launches: dict[tuple[Gemm, str], Launch] = {}
        expected: dict[tuple[Gemm, str], float] = {}
        made = {gemm: operands(gemm, self.plan.seed) for gemm in problems}
        for gemm in problems:
            for name, kernel in self.timed.items():
                if (gemm, name) in self.errors and (not names or name in names):
                    launches[gemm, name] = self._prepared(made[gemm])(kernel)
                    launches[gemm, name].run()
                    launches[gemm, name].refill(made[gemm].d)
                    expected[gemm, name] = self.errors[gemm, name].seconds
        found = in_turns(launches, expected, self.plan.rounds, self.plan.seconds)
        for (gemm, name), launch in launches.items():
            after = right(made[gemm], launch, self.plan.seed)
            if after.fault:
                self._wrong(self.timed[name], Verdict(1, 0.0, 0.0, f"{gemm}, after it was timed: {after.fault}"))
        return {
            gemm: {name: times for (of, name), times in found.items() if of == gemm and name in self.timed}
            for gemm in problems
        }

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
        verdict = verify(kernel, problems, prepare, self.plan.seed, self.plan.longest)
        if verdict.n == 0 and verdict.fault is None:  # nothing was there to run
            return
        self.verdicts[kernel.name], self.facts[kernel.name] = verdict, dict(verdict.facts)
        last = [gemm for _, gemm, _, _ in problems if kernel.refusal(gemm) is None]
        if last and verdict.fault is None:
            self.fastest_run[kernel.name] = last[-1], verdict.seconds
        if verdict.fault:
            self._wrong(kernel, verdict)

    def _wrong(self, kernel: Kernel, verdict: Verdict) -> None:
        """From here on it takes no part, and times that it has are no longer shown."""
        self.verdicts[kernel.name] = verdict
        for found in (*self.times.values(), *self.times_around.values()):
            found.pop(kernel.name, None)
        self.run.say(f"{kernel.name}: WRONG, so it is not timed: {verdict.fault}")


def _case(gemm: Gemm) -> Case:
    """A size that is timed."""
    return "the size that is timed", gemm, "uniform", False
