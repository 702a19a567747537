"""Which part of the cores a stage had while it measured."""

from __future__ import annotations

import os
import time

import pytest
from busy import others_at_work

from pipeline.kernels.cpu import ceilings
from pipeline.machine.others import Others
from pipeline.stages import cores_had
from pipeline.stages.cores_had import CoresHad


def test_others_on_the_cores_are_named_by_the_lowest_share(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.99, 0.98, 0.99, 0.6])
    monkeypatch.setattr(cores_had, "missing_compiler", lambda: None)
    monkeypatch.setattr(ceilings, "cores_had", lambda _: next(shares))
    had = CoresHad(2, pinned=True)
    with had.during():
        pass
    assert (had.shares, had.note()) == ([0.99, 0.98], None)
    with had.during():
        pass
    assert str(had.note()).startswith("other processes are at work: they left 60% of 2 cores; ")


def test_who_came_and_went_between_the_probes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy had half of its rate at one size, and both probes had all of the cores."""
    monkeypatch.setattr(cores_had, "missing_compiler", lambda: None)
    monkeypatch.setattr(ceilings, "cores_had", lambda _: 1.0)
    cores = len(os.sched_getaffinity(0))
    had = CoresHad(cores, pinned=True)
    with had.during(), others_at_work():
        time.sleep(1.5)
    assert (had.shares[0], had.shares[-1]) == (1.0, 1.0)
    assert min(had.shares) < 1 - 0.5 / cores and "at work" in str(had.note())


def test_without_a_compiler_linux_says_what_others_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked, and shares of a BLAS that others held back were kept as certain."""
    monkeypatch.setattr(cores_had, "missing_compiler", lambda: "a C++ compiler")
    had = CoresHad(2, pinned=True)
    for share, kept in ((None, []), (0.4, [0.6])):
        monkeypatch.setattr(Others, "share", lambda _, share=share: share)
        with had.during():
            pass
        assert had.shares == kept
    assert "they left 60% of 2 cores" in str(had.note())


@pytest.mark.parametrize(
    ("cores", "pinned", "watched", "left"),
    [
        (8, False, [4, 5, 6, 7], 0.75),
        (8, True, [4, 5, 6, 7], 0.75),
        (2, True, [4, 5], 0.75),
        (2, False, [4, 5, 6, 7], 1.0),
        (4, True, [4, 5, 6, 7], 0.75),
        (3, False, [4, 5, 6, 7], 1.0),
    ],
)
def test_it_is_the_cores_of_what_is_measured_that_are_watched(
    cores: int, pinned: bool, watched: list[int], left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One core of two was said to be half taken by whoever had the other; of 64, another job on ours was lost; threads
    beyond the cores were said to be others'."""
    monkeypatch.setattr(cores_had, "missing_compiler", lambda: "a C++ compiler")
    monkeypatch.setattr(cores_had, "allowed_cores", lambda: [4, 5, 6, 7])
    monkeypatch.setattr(Others, "share", lambda others: 0.25 if list(others.cores) == watched else None)
    had = CoresHad(cores, pinned=pinned)
    with had.during():
        pass
    assert had.shares == [pytest.approx(left)]
