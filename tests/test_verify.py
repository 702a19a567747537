"""What verifying a kernel sees and says: problem by problem, run by run, whatever the kernel does meanwhile."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.errors import RunError
from pipeline.kernels import verify as verifying
from pipeline.kernels.check import check
from pipeline.kernels.cpu.numpy import Matmul, Numpy
from pipeline.kernels.cpu.of_file import Source
from pipeline.kernels.gemm import Gemm, Operands, operands
from pipeline.kernels.verify import Case, Verdict, how_apart, is_ours, may_hang, verify
from pipeline.spec import spec

SIZES = (16, 20, 24)
CASES: list[Case] = [("sizes", Gemm(m=size, n=size, k=size), "uniform", False) for size in SIZES]
SMALL = CASES[:1]


class Does(Matmul):
    """NumPy's product; `does` is called after each run with the launch and the number of the run."""

    def __init__(self, made: Operands, does: Callable[[Does, int], object]) -> None:
        super().__init__(made, 1)
        self.does, self.runs = does, 0

    def run(self) -> None:
        self.runs += 1
        super().run()
        self.does(self, self.runs)


def found(does: Callable[[Does, int], object], cases: list[Case] = SMALL, kernel: Kernel | None = None) -> Verdict:
    """Of a launch that does this, as one of ours: in this process."""
    return verify(kernel or Numpy(), cases, lambda made: Does(made, does), seed=0)


@spec
class OfUser(Numpy):
    """A kernel that is not this package's, which takes sizes that are divisible by eight."""

    def refusal(self, gemm: Gemm) -> str | None:
        return None if gemm.m % 8 == 0 else "takes multiples of 8"


@spec
class Threaded(OfUser):
    forks: ClassVar[bool] = False


@spec
class OfCard(OfUser):
    processor: ClassVar[Literal["cpu", "gpu"]] = "gpu"
    lacks: str | None = None

    def missing(self) -> str | None:
        return self.lacks


def test_only_problems_that_a_kernel_takes_count(tmp_path: Path) -> None:
    asked: list[int] = []

    def prepare(made: Operands) -> Launch:
        (tmp_path / f"{made.gemm.m}").touch()
        asked.append(made.gemm.m)
        return Matmul(made, 1)

    verdict = verify(OfUser(), CASES, prepare, seed=0)
    assert (verdict.n, verdict.fault) == (2, None)
    assert {path.name for path in tmp_path.iterdir()} == {"16", "24"} and asked == []  # in another process
    verdict = verify(OfUser(), CASES[1:2], prepare, seed=0)
    assert (verdict.n, verdict.fault) == (0, "takes none of the problems on which it would be verified")


def test_which_kernels_are_verified_in_another_process_and_how_that_begins(tmp_path: Path) -> None:
    (tmp_path / "mine.cpp").write_text("")
    assert is_ours(Numpy()) and not is_ours(OfUser()) and not is_ours(Source(file=str(tmp_path / "mine.cpp")))
    assert may_hang(OfUser()) and not may_hang(Numpy())
    # A kernel of ours whose threads wait for what one architecture has, where that is there and where it is not.
    for missing, waits in ((None, True), ("needs another GPU", False)):
        members = {"__module__": Numpy.__module__, "specific": True, "missing": lambda _, missing=missing: missing}
        ours: Any = type("Ours", (), members)()
        assert is_ours(ours) and may_hang(ours) is waits
    assert [how_apart(one) for one in (OfUser(), Threaded(), OfCard(), OfCard(lacks="a GPU"))] == [
        *("fork", "spawn", "spawn", "fork"),
    ]


def test_each_problem_has_its_own_operands() -> None:
    """Zero times what is in C is nothing, also where C has no number."""
    made: list[Operands] = []

    def prepare(one: Operands) -> Launch:
        made.append(one)
        return Matmul(one, 1)

    nan: Case = ("NaN in C", CASES[0][1], "uniform", True)
    whole: Case = ("integers", CASES[0][1], "integers", False)
    assert verify(Numpy(), [CASES[0], CASES[0], nan, whole], prepare, seed=5).fault is None
    first, second, third, fourth = made
    assert not np.array_equal(first.a, second.a) and not np.array_equal(first.b, second.b)
    assert [bool(np.isnan(one.c).all()) for one in made] == [False, False, True, False]
    assert np.array_equal(fourth.a, np.rint(fourth.a)) and not np.array_equal(third.a, np.rint(third.a))


def test_the_worst_of_all_problems_is_kept() -> None:
    """Not that of the last one; and what came before a fault is in the verdict too, with the facts of the launch."""

    def off(launch: Does, _: int) -> None:
        if launch.operands.gemm.m == SIZES[1]:
            launch.d[...] *= np.float32(1 + 2.0**-21)

    each = [found(off, [case]) for case in CASES]
    for one in (each[0], each[2]):
        assert one.error < 0.4 * each[1].error and one.relative < 0.4 * each[1].relative
    verdict = found(off, CASES)
    assert (verdict.n, verdict.fault) == (3, None)
    assert verdict.error > 0.5 * each[1].error and verdict.relative > 0.5 * each[1].relative

    def fails(launch: Does, _: int) -> None:
        off(launch, 0)
        if launch.operands.gemm.m == SIZES[2]:
            raise RunError("enough")

    verdict = found(fails, CASES)
    assert (verdict.n, verdict.fault) == (2, "sizes, at M=N=K=24, fp32, column-major: enough")
    assert verdict.error > 0.5 * each[1].error and verdict.facts == each[0].facts


def poisoned(launch: Does, run: int) -> None:
    if run > 1:
        launch.refill(launch.operands.d)


def added(launch: Does, run: int) -> None:
    if run > 1:
        launch.d += 1


@pytest.mark.parametrize("does", [poisoned, added])
def test_a_kernel_that_is_right_once_is_wrong(does: Callable[[Does, int], object]) -> None:
    """It computes in its first run alone, or adds to what it left."""
    assert str(found(does).fault).endswith(" in its second run")


class Empty(Matmul):
    """Computes when it is made, and not when it is run."""

    def __init__(self, made: Operands) -> None:
        super().__init__(made, 1)
        super().run()

    def run(self) -> None: ...


def test_a_kernel_that_computes_nothing_when_it_is_run_is_wrong() -> None:
    assert str(verify(Numpy(), SMALL, Empty, seed=0).fault).endswith(" in its second run")


def test_what_is_not_the_same_twice_is_checked_twice() -> None:
    """Sums in another order are right as well."""

    def other(launch: Does, run: int) -> None:
        launch.d[...] *= np.float32(1 + run * 2.0**-23)

    assert found(other).fault is None


@pytest.mark.parametrize(("waits", "seconds"), [(True, (0.5, math.inf)), (False, (0.0, 0.4))])
def test_the_time_of_a_launch_is_what_it_waits_or_what_it_computes(waits: bool, seconds: tuple[float, float]) -> None:
    """Of what another process computes the clock on the wall tells it, and not the processor's of this one."""

    def sleeps(launch: Does, _: int) -> None:
        launch.waits = waits
        time.sleep(0.5)

    made = operands(CASES[2][1], 0)
    _, took = verifying._run(made, Does(made, sleeps), 0, lambda _: None)
    assert seconds[0] <= took <= seconds[1]


def slow(made: Operands, after: Callable[[Does, int], object] | None = None) -> Launch:
    return Does(made, after or (lambda *_: time.sleep(0.5)))


def test_a_kernel_has_the_time_that_its_largest_product_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "LIMIT_S", 0.2)
    said = "sizes, at M=N=K=16, fp32, column-major: has not ended after 0 s"
    assert verify(OfUser(), SMALL, slow, seed=0).fault == said
    assert verify(OfUser(), SMALL, slow, seed=0, longest=0.5).fault is None


def deaf(made: Operands) -> Launch:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return slow(made, lambda *_: time.sleep(10_000))


def test_a_kernel_that_does_not_hear_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "LIMIT_S", 0.2)
    assert str(verify(OfUser(), SMALL, deaf, seed=0).fault).endswith("has not ended after 0 s")


@pytest.mark.parametrize(
    ("raised", "said"), [(KeyError("gone"), "raises KeyError: 'gone'"), (RunError("no room"), "no room")]
)
def test_whatever_a_users_kernel_raises_is_its_verdict(raised: Exception, said: str) -> None:
    """With the problem at which it was."""

    def fails(launch: Does, _: int) -> None:
        if launch.operands.gemm.m == SIZES[2]:
            raise raised

    fault = str(verify(OfUser(), CASES, lambda made: Does(made, fails), seed=0).fault)
    assert fault.startswith(f"sizes, at M=N=K=24, fp32, column-major: {said}")


def test_a_crash_is_named_by_its_problem() -> None:
    def crashes(launch: Does, _: int) -> None:
        if launch.operands.gemm.m == SIZES[2]:
            signal.raise_signal(signal.SIGKILL)

    fault = verify(OfUser(), CASES, lambda made: Does(made, crashes), seed=0).fault
    assert fault == "sizes, at M=N=K=24, fp32, column-major: crashed (SIGKILL)"


def test_of_a_large_product_the_first_and_the_last_row_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Element by element; of a small one, and of one with few rows, all are."""
    rows: list[np.ndarray | None] = []

    def kept(made: Operands, d: np.ndarray, picked: np.ndarray | None) -> Any:
        rows.append(picked)
        return check(made, d, picked)

    monkeypatch.setattr(verifying, "check", kept)
    large = Gemm(m=900, n=700, k=400)
    for gemm in (large, replace(large, m=64, n=7000, k=900), replace(large, k=4)):
        case: Case = ("sizes", gemm, "uniform", False)
        assert verify(Numpy(), [case], partial(Numpy().prepare, threads=2), seed=3).fault is None
    first, *others = rows
    assert first is not None and all(one is None for one in others)
    assert (first[0], first[-1]) == (0, 899) and 50 < len(first) <= 64
