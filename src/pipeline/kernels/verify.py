"""A kernel is verified before it is timed, in another process where it may crash, or never end."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.errors import Readable, RunError, UserError
from pipeline.kernels.cases import cases
from pipeline.kernels.check import Check, check
from pipeline.kernels.gemm import Gemm, Operands, Values, digest, operands
from pipeline.kernels.printed import redirect, redirected, shorten
from pipeline.raised import in_words as in_words_of_user
from pipeline.runs.json_files import plain
from pipeline.spec import is_shipped

LIMIT_S = 30.0  # of a run in another process, and RUNS times what it may take
OURS_S = 5.0  # the same of a kernel of ours, which is compiled then: a card's time is dear
RUNS = 10
WATCH_S = 0.5  # between two looks at how much a kernel has printed
SHORT_S = 0.01  # a run that takes no longer is measured three times more
WHOLE_FLOP = 2 * 600**3  # up to here every element is compared with float64; beyond, ROWS rows and the sums of all
ROWS = 64
Case = tuple[str, Gemm, Values, bool]
Prepare = Callable[[Operands], "Launch | None"]
Watch = Callable[[Case, bool], object]  # called with a problem, and whether the kernel's own code is about to run


@dataclass(frozen=True)
class Verdict:
    """`n`: problems it was verified on. `error`, `relative`: the worst (`Check`). `fault`: None where it passed.

    `seconds`: the fastest run of the last problem, for an idea of how long others take. `facts`: `Launch.facts`.
    """

    n: int
    error: float
    relative: float
    fault: str | None = None
    seconds: float = 0.0
    facts: Mapping[str, object] = field(default_factory=dict)


def verify(
    kernel: Kernel,
    problems: Iterable[Case],
    prepare: Prepare,
    seed: int,
    longest: float = 0.0,
    printed: Path | None = None,
) -> Verdict:
    """The problems that the kernel takes, up to the first at which it is wrong; a fault where it takes none.

    Of a kernel that runs in another process, `longest`: seconds that a product may take; `printed`: the file that what
    it prints is added to (None: that is thrown away).
    """
    taken = [case for case in problems if refusal_of(kernel, case[1]) is None]
    if not taken:
        return Verdict(0, 0.0, 0.0, "takes none of the problems on which it would be verified")
    if not may_hang(kernel):
        return _verify(taken, prepare, seed)
    limit = (OURS_S if is_ours(kernel) else LIMIT_S) + RUNS * longest
    return _apart(taken, prepare, seed, limit, how_apart(kernel), printed)


def how_apart(kernel: Kernel) -> str:
    """How another process is started for it: CUDA and pools of threads do not outlive a fork."""
    on_card = kernel.processor == "gpu" and missing_of(kernel) is None
    return "spawn" if on_card or not kernel.forks else "fork"


def start(process: BaseProcess, how: str, printed: Path | None) -> None:
    """A spawned process imports the user's module before it can redirect what that prints; a forked one has it, and
    would keep descriptors of what was redirected. So would multiprocessing's own process, which outlives it."""
    resource_tracker.ensure_running()
    with redirected(printed) if how == "spawn" else contextlib.nullcontext():
        process.start()


def how_it_ended(process: BaseProcess) -> str:
    """In words, of a process that has ended before it said anything."""
    process.join()
    code = process.exitcode or 0
    return f"crashed ({signal.Signals(-code).name if code < 0 else f'exit status {code}'})"


def is_ours(kernel: Kernel) -> bool:
    """Whether a kernel is this package's code."""
    return is_shipped(kernel) and not hasattr(kernel, "file")


def may_hang(kernel: Kernel) -> bool:
    """Whether it is verified in another process: a kernel of the user's, and on a GPU one whose threads wait for what
    that architecture alone has (barriers that count bytes, registers), where an error waits for ever.
    """
    return not is_ours(kernel) or (kernel.specific and missing_of(kernel) is None)


def refusal_of(kernel: Kernel, gemm: Gemm) -> str | None:
    """`kernel.refusal`. Raises UserError where a user's raises anything."""
    return _asked(kernel, "refusal", partial(kernel.refusal, gemm))


def missing_of(kernel: Kernel) -> str | None:
    """`kernel.missing`. Raises UserError where a user's raises anything."""
    return _asked(kernel, "missing", kernel.missing)


def _asked(kernel: Kernel, what: str, ask: Callable[[], str | None]) -> str | None:
    try:
        found: object = ask()
    except Exception as error:  # whatever the user's code may raise
        if is_ours(kernel) or isinstance(error, Readable):
            raise
        raise UserError(f"stage.kernels={kernel.name}: {what} {raised(error)}") from error
    if found is None or (isinstance(found, str) and found):
        return found
    raise UserError(f"stage.kernels={kernel.name}: {what} gave {found!r}; return None, or in words why not")


def all_cases(dtype: str) -> list[Case]:
    """Those of cases.py."""
    return list(cases(dtype))


def _verify(
    problems: Sequence[Case], prepare: Prepare, seed: int, watch: Watch = lambda _case, _running: None
) -> Verdict:
    n, error, relative, seconds = 0, 0.0, 0.0, 0.0
    facts: dict[str, object] = {}
    last = problems[-1]
    for case in problems:
        _, gemm, values, nan_c = case
        watch(case, False)
        made = operands(gemm, seed + n, values, nan_c)
        try:
            launch = prepare(made)
            if launch is None and n == 0:
                return Verdict(0, 0.0, 0.0)
            if launch is None:
                raise RunError("nothing to run; a kernel's `refusal` says which problems it does not take")
            facts, running = _facts(launch), partial(watch, case)
            found, seconds = _run(made, launch, seed, running)
            if case is last and found.fault is None and seconds < SHORT_S:
                running(True)
                seconds = min(seconds, *(as_seconds(launch.seconds(1)) for _ in range(3)))
                running(False)
        except Readable as failed:
            return Verdict(n, error, relative, f"{_called(case)}: {failed}", 0.0, facts)
        n, error, relative = n + 1, max(error, found.error), max(relative, found.relative)
        if found.fault:
            return Verdict(n, error, relative, f"{_called(case)}: {found.fault}", seconds, facts)
    return Verdict(n, error, relative, None, seconds, facts)


def as_seconds(given: object) -> float:
    """What a launch's `seconds` has returned. Raises RunError where that cannot be a time."""
    if isinstance(given, Real) and 0 < float(given) < math.inf:
        return float(given)
    raise RunError(f"seconds gave {given!r}; give the seconds that a run takes, above 0")


def _facts(launch: Launch) -> dict[str, object]:
    """Its facts. Raises RunError where the receipt cannot keep one, and where its `rest_s` cannot be a time to wait."""
    given, rest_s = launch.facts, launch.rest_s
    if not isinstance(given, Mapping):
        raise RunError(f"facts gave {given!r}; give a mapping, {{}} where there is nothing to keep")
    if not (isinstance(rest_s, Real) and 0 <= rest_s < math.inf):
        raise RunError(f"rest_s gave {rest_s!r}; give seconds, 0 or more")
    found = dict(given)
    for name, fact in found.items():
        try:
            plain(fact)
        except TypeError as error:
            kind = str(error).partition(" ")[0]  # of what lies inside a list, too
            raise RunError(
                f"facts[{name!r}]: the receipt cannot keep a value of type {kind}; give numbers, text or lists"
            ) from error
    return found


def _run(made: Operands, launch: Launch, seed: int, running: Callable[[bool], object]) -> tuple[Check, float]:
    """What is wrong in two runs, the second on a D that is poisoned again; seconds of the faster one."""
    before, first = made.digest(), made.d
    seconds: list[float] = []
    for again in (False, True):
        running(True)
        if again:
            launch.refill(made.d)
            if not _same_bits(_result(made, launch), made.d):
                return Check(0.0, 0.0, "override `refill`: D is not what it filled in"), min(seconds)
        seconds.append(_seconds(launch))
        inputs, d = launch.inputs(), _result(made, launch)
        running(False)
        after = made.digest() if inputs is None else digest(inputs)
        written = [name for name, old, new in zip("ABC", before, after, strict=True) if old != new]
        if written:  # what D should be is no longer known
            return Check(0.0, 0.0, f"writes into {', '.join(written)}, or beside"), min(seconds)
        if again and _same_bits(d, first):
            break
        found = check(made, d, _rows(made.gemm, seed))
        if found.fault:
            return replace(found, fault=f"{found.fault}{' in its second run' if again else ''}"), min(seconds)
        first = d.copy()
    return found, min(seconds)


def _result(made: Operands, launch: Launch) -> np.ndarray:
    """D's buffer as a launch gives it. Raises RunError for anything that is not like `Operands.d`."""
    d: object = launch.result()
    if isinstance(d, np.ndarray) and (d.shape, d.dtype) == (made.d.shape, made.d.dtype):
        return d
    given = "None" if d is None else _in_words(d) if isinstance(d, np.ndarray) else f"a {type(d).__name__}"
    gemm = made.gemm
    raise RunError(
        f"result() gave {given}, where {_in_words(made.d)} is wanted: "
        f"the buffer of D ({gemm.m} × {gemm.n}) as `operands.d` stores it, padding included"
    )


def _in_words(array: np.ndarray) -> str:
    return f"an array of shape {array.shape} of {array.dtype}"


def _seconds(launch: Launch) -> float:
    """Of a run. On a CPU no more than its processor time, where that clock has moved on meanwhile: what other processes
    took is not the kernel's."""
    began, computed = time.perf_counter(), time.process_time()
    launch.run()
    wall, processor = time.perf_counter() - began, time.process_time() - computed
    return min(wall, processor) if processor and not launch.waits else wall


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """NaN is equal to NaN here."""
    return np.array_equal(one.view(np.int32), other.view(np.int32))


def right(made: Operands, launch: Launch, seed: int, calls: int) -> Check:
    """What a sample of `calls` runs, as they were timed, leaves in D, against float64; so too a burst, a single run.

    A kernel may compute in the one and not in the other. Where both leave the same bits, one comparison is enough.
    """
    rows = _rows(made.gemm, seed)
    sustained = _left_by(made, launch, calls)
    found = check(made, sustained, rows)
    if found.fault or calls == 1:
        return found
    before = sustained.copy()
    burst = _left_by(made, launch, 1)
    if _same_bits(burst, before):
        return found
    single = check(made, burst, rows)
    return replace(single, fault=f"in a burst: {single.fault}") if single.fault else found


def _left_by(made: Operands, launch: Launch, calls: int) -> np.ndarray:
    """D after a sample. Without the poison it would be right of a kernel that computes nothing any more, as a run
    before has left it."""
    launch.refill(made.d)
    launch.seconds(calls)
    return _result(made, launch)


def _rows(gemm: Gemm, seed: int) -> np.ndarray | None:
    """The rows of a large D that are compared element by element, the first and the last among them."""
    if gemm.flop <= WHOLE_FLOP or gemm.m <= ROWS:
        return None
    picked = np.random.default_rng(seed).choice(gemm.m, ROWS, replace=False)
    picked[:2] = 0, gemm.m - 1
    return np.unique(picked)


def _called(case: Case) -> str:
    what, gemm, _, _ = case
    return f"{what}, at {gemm.in_full}"


def _apart(problems: list[Case], prepare: Prepare, seed: int, limit: float, how: str, printed: Path | None) -> Verdict:
    """The same in a separate process. `limit`: seconds of a single run; compiling and checking have none."""
    context: Any = multiprocessing.get_context(how)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, problems, prepare, seed, printed), daemon=True)
    start(process, how, printed)
    theirs.close()
    at, running = problems[0], False
    try:
        while _heard(ours, limit if running else None, printed):
            found = ours.recv()
            if isinstance(found, Verdict):
                process.join()
                return found
            number, running = found
            at = problems[number]
        return Verdict(0, 0.0, 0.0, f"{_called(at)}: has not ended after {limit:.0f} s")
    except EOFError:
        return Verdict(0, 0.0, 0.0, f"{_called(at)}: {how_it_ended(process)}")
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        shorten(printed)


def _heard(pipe: Connection, limit: float | None, printed: Path | None) -> bool:
    """Whether something comes within `limit` seconds (None: whenever); what is printed meanwhile is kept short."""
    until = math.inf if limit is None else time.monotonic() + limit
    while not pipe.poll(max(0.0, min(WATCH_S, until - time.monotonic()))):
        shorten(printed)
        if time.monotonic() >= until:
            return False
    return True


def _send(to: Connection, problems: list[Case], prepare: Prepare, seed: int, printed: Path | None) -> None:
    at = problems[0]

    def watch(case: Case, running: bool) -> None:
        nonlocal at
        at = case
        to.send((problems.index(case), running))

    redirect(printed)
    try:
        to.send(_verify(problems, prepare, seed, watch))
    except Exception as error:  # whatever the user's code may raise
        to.send(Verdict(0, 0.0, 0.0, f"{_called(at)}: {in_words(error)}"))


def in_words(error: Exception) -> str:
    """An error of a kernel: our own words, or what the user's code raised."""
    return str(error) if isinstance(error, Readable) else raised(error)


def raised(error: Exception) -> str:
    """What the user's code raised, in words."""
    return f"raises {in_words_of_user(error)}"
