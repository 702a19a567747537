"""Which part of the cores a stage had while it measured."""

from __future__ import annotations

import pytest

from pipeline.kernels.cpu import ceilings
from pipeline.stages import cores_had
from pipeline.stages.cores_had import CoresHad


def test_others_on_the_cores_are_named_by_the_lowest_share(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.99, 0.6])
    monkeypatch.setattr(cores_had, "missing_compiler", lambda: None)
    monkeypatch.setattr(ceilings, "cores_had", lambda _: next(shares))
    had = CoresHad(2)
    had.ask()
    assert had.note() is None
    had.ask()
    assert str(had.note()).startswith("other processes are at work: they left 60% of 2 cores; ")


def test_without_a_compiler_linux_says_what_others_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked, and shares of a BLAS that others held back were kept as certain."""
    monkeypatch.setattr(cores_had, "missing_compiler", lambda: "a C++ compiler")
    had = CoresHad(2)
    monkeypatch.setattr(had.others, "share", lambda: None)
    had.ask()
    assert (had.shares, had.note()) == ([], None)
    monkeypatch.setattr(had.others, "share", lambda: 0.4)
    had.ask()
    assert had.shares == [0.6]
    assert "they left 60% of 2 cores" in str(had.note())
