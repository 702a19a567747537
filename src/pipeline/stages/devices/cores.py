"""The share of the cores that a process has that does multiply-adds on all of them: less where others are at work."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from pipeline.kernels.cpu.ceilings import DTYPES, multiply_adds
from pipeline.machine.ceilings import HAD, Ceiling


def measured(place: str, rounds: int) -> Iterator[list[Ceiling]]:
    """On all cores that this process may use; `place`: `cpu`. Raises UserError without a compiler."""
    threads = len(os.sched_getaffinity(0))
    yield [had([multiply_adds(threads, dtype)[1] for dtype in DTYPES])]


def had(shares: Sequence[float]) -> Ceiling:
    """In percent."""
    return Ceiling(name=HAD, unit="%", of="of them, had", samples=tuple(100 * share for share in shares))
