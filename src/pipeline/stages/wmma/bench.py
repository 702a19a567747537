"""The bench: which kernels run here, which of them are right, and how long they take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from pipeline.contracts.kernels import WARNINGS, Kernel, Launch
from pipeline.errors import Readable, RunError
from pipeline.kernels import nvrtc
from pipeline.kernels.apart import Apart
from pipeline.kernels.card_state import State, state
from pipeline.kernels.cpu import ceilings
from pipeline.kernels.cpu.compiled import missing_compiler
from pipeline.kernels.gemm import Gemm, Operands, operands
from pipeline.kernels.on_card import card_index, on_card
from pipeline.kernels.printed import redirected
from pipeline.kernels.timing import Times, in_turns
from pipeline.kernels.verify import (
    LIMIT_S,
    RUNS,
    Case,
    Prepare,
    Verdict,
    all_cases,
    in_words,
    is_ours,
    may_hang,
    missing_of,
    refusal_of,
    right,
    verify,
)
from pipeline.report.table import digits
from pipeline.stages.wmma.found import Found

MEASURED = "fp32"  # what the CPU's ceilings are those of
JUDGED_S = 1e-3  # of a product by which the time of a larger one is judged: a shorter one is mostly the call itself
TRIAL = 128  # N of the product that gives a first idea of a kernel's rate


class Bench(Found):
    """Verify everything, then time."""

    def blas_threads(self) -> contextlib.AbstractContextManager[object]:
        """NumPy's BLAS on as many threads as the other kernels."""
        from threadpoolctl import threadpool_limits

        return threadpool_limits(self.plan.cores, user_api="blas")

    def verify(self) -> None:
        """Of the kernels that run here: compile ours, on all cores; then run each on every class of problems, then at
        each size."""
        trial = self.plan.problem(TRIAL)
        problems = [*all_cases(trial.dtype), _case(trial)]
        running = [kernel for kernel in self.plan.kernels if kernel.name not in self.absent]
        small = operands(replace(trial, m=1, n=1, k=1), self.plan.seed)
        ours = [kernel for kernel in running if is_ours(kernel) and refusal_of(kernel, small.gemm) is None]
        with ThreadPoolExecutor(self.plan.cores) as pool:
            if self._has_ceilings:
                pool.submit(ceilings.probe)  # compiled beside them; `measure_ceilings` says what goes wrong
            list(pool.map(partial(self._compile, small), ours))
        for kernel in running:
            if kernel.name in self.absent:  # one before it has broken the card's context
                continue
            if kernel.processor == "gpu" and not is_ours(kernel) and kernel.rehearses(trial.dtype):
                self._rehearse(kernel)
            if kernel.name in self.verdicts:  # it is wrong
                continue
            if any(refusal_of(kernel, gemm) is None for _, gemm, _, _ in problems):
                self._judge(kernel, problems, self._prepare(kernel))
            else:  # its sizes say whether it is right
                self.verdicts[kernel.name] = Verdict(0, 0.0, 0.0)
        for gemm in self.plan.problems:
            self.verify_at(gemm)

    def rehearse(self) -> None:
        """Verify the others, which are not timed here: after those that are, so that rates come first."""
        others = [kernel for kernel in self.plan.kernels if self._rehearsal(kernel) is not None]
        if others:
            self.run.say(f"verifying what is not timed here: {', '.join(one.name for one in others)}")
        for kernel in others:
            work = self._rehearsal(kernel)  # once more: one before it may have broken the card's context
            if work is not None:
                work()

    def _rehearsal(self, kernel: Kernel) -> Callable[[], None] | None:
        """What verifies a kernel that is not timed here; None where nothing has to, or can."""
        dtype = self.plan.checked_in(kernel)
        if kernel.name not in self.absent or kernel.name in self.verdicts or dtype is None:
            return None
        lost = self.broken is not None and kernel.processor == "gpu"
        if dtype != self.plan.dtype and missing_of(kernel) is None and not lost:  # it runs here, in another dtype
            return lambda: self._judge(kernel, all_cases(dtype), self._prepare(kernel))
        if (dtype != self.plan.dtype or self.plan.taken(kernel)) and kernel.rehearses(dtype):
            return lambda: self._judge(kernel, all_cases(dtype), kernel.rehearse)
        return None

    def watched(self, *, probe: bool = True) -> contextlib.AbstractContextManager[object]:
        """Which part of the cores this process has meanwhile, where a kernel of the CPU is timed."""
        if not any(kernel.processor == "cpu" for kernel in self.timed.values()):
            return contextlib.nullcontext()
        return self.cores_had.during() if probe else self.cores_had.counted()

    def measure_ceilings(self) -> None:
        """Of the CPU, where there is a compiler to measure it, and of the GPU, where one of its kernels was timed."""
        self._measure_card()
        if not self._has_ceilings:
            return
        try:
            self.ceilings = ceilings.measured(self.plan.cores)
        except Readable as error:
            self.run.note(f"no ceilings: {error}")
            return
        if self.ceilings.doubt:
            self.run.note(f"the memory's ceiling is uncertain: {self.ceilings.doubt}")
        self.cores_had.shares.append(self.ceilings.cores_had)

    def _measure_card(self) -> None:
        if not any(kernel.processor == "gpu" for kernel in self.timed.values()):
            return
        from pipeline.kernels.cuda.ceilings import measured

        try:
            with on_card(self.index):
                self.card_ceilings = measured(self.plan.dtype)
        except Readable as error:
            self.run.note(f"no ceilings of the GPU: {error}")
            return
        if self.card_ceilings.doubt:
            self.run.note(f"the ceiling of the GPU's memory is uncertain: {self.card_ceilings.doubt}")

    @property
    def _has_ceilings(self) -> bool:
        return missing_compiler() is None and self.plan.dtype == MEASURED

    def verify_at(self, gemm: Gemm, names: Collection[str] = ()) -> None:
        """The kernels (of `names`, or all that are right so far) at a size, or why one is not run there."""
        for name, kernel in list(self.timed.items()):
            if name not in self.timed or (names and name not in names):
                continue
            if not kernel.yardstick and refusal_of(kernel, gemm) is None:
                self._approach(gemm, kernel)
            if name not in self.timed:
                continue
            refusal = refusal_of(kernel, gemm) or self._too_long(gemm, kernel)
            if refusal:
                self.skipped[gemm, name] = refusal
                continue
            found = self._verified(kernel, [_case(gemm)], self._prepare(kernel))
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
        about = self._expected(gemm, kernel)
        if kernel.yardstick or about is None or about <= self.plan.longest:
            return None
        last, seconds = self.fastest_run[kernel.name]
        if seconds < JUDGED_S:  # no size between them is long enough to judge by
            return None
        most = f"more than stage.longest={self.plan.longest:g}"
        return f"one product would take about {digits(about)} s, {most}, by the {digits(seconds)} s of {last}"

    def _expected(self, gemm: Gemm, kernel: Kernel) -> float | None:
        """Seconds of one product, if its rate is that of the last one that was verified."""
        if kernel.name not in self.fastest_run:
            return None
        last, seconds = self.fastest_run[kernel.name]
        return seconds * gemm.flop / last.flop

    def _approach(self, gemm: Gemm, kernel: Kernel) -> None:
        """Where a size seems to take too long, judged by a product that is over in no time (most of which is the call
        itself): run it at twice the size, until a product takes JUDGED_S."""
        while (about := self._expected(gemm, kernel)) is not None and about > self.plan.longest:
            last, seconds = self.fastest_run[kernel.name]
            larger = replace(gemm, m=min(2 * last.m, gemm.m), n=min(2 * last.n, gemm.n), k=min(2 * last.k, gemm.k))
            if seconds >= JUDGED_S or larger == gemm or refusal_of(kernel, larger) is not None:
                return
            found = self._verified(kernel, [_case(larger)], self._prepare(kernel))
            self.fastest_run[kernel.name] = larger, found.seconds
            if found.fault:
                self._wrong(kernel, found)
                return

    def time(self, problems: Sequence[Gemm], names: Collection[str] = ()) -> dict[Gemm, dict[str, Times]]:
        """Those verified at each size (of `names`, or all), in turns; one that fails, or is wrong then, is dropped."""
        launches: dict[tuple[Gemm, str], Launch] = {}
        expected: dict[tuple[Gemm, str], float] = {}
        made = {gemm: operands(gemm, self.plan.seed) for gemm in problems}
        for gemm in problems:
            for name, kernel in list(self.timed.items()):
                if name not in self.timed or (gemm, name) not in self.errors or (names and name not in names):
                    continue
                with self._its_own_row((gemm, name)):
                    launch = self._launch(kernel, made[gemm])
                    launch.run()
                    launch.refill(made[gemm].d)
                    launches[gemm, name] = launch
                    expected[gemm, name] = self.errors[gemm, name].seconds
        with self.watched(probe=False):
            found = in_turns(launches, expected, self.plan.rounds, self.plan.seconds, self._failed, self._state)
        for (gemm, name), launch in launches.items():
            if name not in self.timed:
                continue
            with self._its_own_row((gemm, name)):
                after = right(made[gemm], launch, self.plan.seed, found[gemm, name].calls)
                if after.fault:
                    self._wrong(
                        self.timed[name], Verdict(1, 0.0, 0.0, f"at {gemm.in_full}, after it was timed: {after.fault}")
                    )
        return {
            gemm: {name: times for (of, name), times in found.items() if of == gemm and name in self.timed}
            for gemm in problems
        }

    def _state(self, key: tuple[Gemm, str]) -> State | None:
        """Clock and power of the GPU, where the kernel runs on it."""
        if self.processor(key[1]) != "gpu":
            return None
        with on_card(self.index):
            return state()

    def _prepare(self, kernel: Kernel) -> Callable[[Operands], Launch]:
        return partial(_prepared, kernel, self.plan.cores, card_index())

    def _launch(self, kernel: Kernel, made: Operands) -> Launch:
        """To be timed; a user's in another process."""
        if is_ours(kernel):
            return self._prepare(kernel)(made)
        limit = LIMIT_S + RUNS * (self.plan.longest + self.plan.seconds)
        return Apart(kernel, self._prepare(kernel), made, limit)

    def _compile(self, made: Operands, kernel: Kernel) -> None:
        """Into the cache. What goes wrong is said where the kernel is verified."""
        with contextlib.suppress(Readable):
            self._prepare(kernel)(made)

    def _rehearse(self, kernel: Kernel) -> None:
        """A user's kernel for a GPU by the shim, which sees what a card does not (accesses out of bounds, races).

        Of one that is right nothing is kept: the card says whether it is. What the shim cannot compile, a card may run.
        """
        problems = all_cases(self.plan.dtype)
        small = next((gemm for _, gemm, _, _ in problems if refusal_of(kernel, gemm) is None), None)
        if small is None:
            return
        try:
            with redirected(self.printed.file(kernel.name)):
                kernel.rehearse(operands(small, self.plan.seed))
        except Readable as error:
            self.run.note(f"{kernel.name}: not rehearsed on the CPU: {error}")
            return
        found = self._verified(kernel, problems, kernel.rehearse)
        if found.fault:
            self._wrong(kernel, replace(found, fault=f"rehearsed on the CPU: {found.fault}"))

    @contextlib.contextmanager
    def _its_own_row(self, key: tuple[Gemm, str]) -> Iterator[None]:
        """An error of one kernel is its row of the table: the others go on."""
        try:
            yield
        except Exception as error:  # whatever the user's code may raise
            self._failed(key, error)

    def _failed(self, key: tuple[Gemm, str], error: Exception) -> None:
        """While it was timed. A bug of ours keeps its traceback; what a broken context says is nobody's fault twice."""
        gemm, name = key
        if name in self.absent:
            return
        kernel = next(one for one in self.plan.kernels if one.name == name)
        if is_ours(kernel) and not isinstance(error, Readable):
            raise error
        self._wrong(kernel, Verdict(1, 0.0, 0.0, f"at {gemm.in_full}, while it was timed: {in_words(error)}"))

    def _judge(self, kernel: Kernel, problems: Sequence[Case], prepare: Prepare) -> None:
        """Verify a kernel, and say so at once where it is wrong."""
        verdict = self._verified(kernel, problems, prepare)
        if verdict.n == 0 and verdict.fault is None:  # nothing was there to run
            return
        self.verdicts[kernel.name], self.facts[kernel.name] = verdict, dict(verdict.facts)
        last = [gemm for _, gemm, _, _ in problems if refusal_of(kernel, gemm) is None]
        if last and verdict.fault is None:
            self.fastest_run[kernel.name] = last[-1], verdict.seconds
        self._note_warnings(kernel.name)
        if verdict.fault:
            self._wrong(kernel, verdict)

    def _verified(self, kernel: Kernel, problems: Sequence[Case], prepare: Prepare) -> Verdict:
        printed = self.printed.file(kernel.name)
        return verify(kernel, problems, prepare, self.plan.seed, self.plan.longest, printed)

    def note_printed(self) -> None:
        """Keep what users' kernels have printed as an artifact, and note it."""
        if self.printed.written:
            self.printed.copy_to(self.run.artifact("printed.txt"))
        for note in self.printed.notes():
            self.run.note(f"{note} (artifacts/printed.txt)")

    def _note_warnings(self, name: str) -> None:
        """What the compiler says of a user's file that it has compiled."""
        found = self.facts[name].get(WARNINGS)
        if isinstance(found, list) and found:
            more = f" (and {len(found) - 1} more; receipt.json has all)" if len(found) > 1 else ""
            self.run.note(f"{name}: {found[0]}{more}")

    def _wrong(self, kernel: Kernel, verdict: Verdict) -> None:
        """From here on it takes no part, and times that it has are no longer shown.

        A GPU's kernel that has broken the card's context, as one does that writes where no memory is, takes the others
        of this process with it: they are not wrong, they cannot be run any more. What they were timed at stays.
        """
        if kernel.launched:
            verdict = replace(verdict, fault=f"{verdict.fault}; launched with {kernel.launched}")
        self.verdicts[kernel.name] = verdict
        for found in (*self.times.values(), *self.times_around.values()):
            found.pop(kernel.name, None)
        self.run.say(f"{kernel.name}: WRONG, so it is not timed: {verdict.fault}")
        if kernel.processor != "gpu" or may_hang(kernel) or missing_of(kernel) is not None:
            return
        broken = context_fault(self.index)
        if broken is None:
            return
        self.broken = f"needs a GPU that answers: {kernel.name} broke its context ({broken})"
        for other in self.plan.kernels:
            if other.name != kernel.name and other.processor == "gpu" and other.name not in self.absent:
                self.absent[other.name] = self.broken


def context_fault(index: int | None) -> str | None:
    """What the card's driver says when it is asked whether all is well; None: nothing, or it cannot be asked."""
    if nvrtc.missing_packages() is not None:
        return None
    from pipeline.kernels.cuda.card import Card

    try:
        with on_card(index):
            Card("the driver").wait()
    except Readable as error:
        return str(error)
    return None


def _prepared(kernel: Kernel, threads: int, index: int | None, made: Operands) -> Launch:
    """`kernel.prepare`, on the same card in another process too."""
    with on_card(index):
        launch: object = kernel.prepare(made, threads)
    if isinstance(launch, Launch):
        return launch
    given = "None" if launch is None else f"a {type(launch).__name__}"  # of a user, who has not returned it
    raise RunError(f"its `prepare` returned {given}, not a Launch")


def _case(gemm: Gemm) -> Case:
    """A problem whose size is timed, as a case to verify: uniform numbers."""
    return "the size that is timed", gemm, "uniform", False
