"""Whether other processes had the cores while a stage measured: rates are then theirs as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import Readable
from pipeline.kernels.cpu import ceilings
from pipeline.kernels.cpu.compiled import missing_compiler
from pipeline.machine.others import Others, allowed_cores


class CoresHad:
    """The share of `cores` cores that were there for a stage, by a probe before and after it measures, and by Linux's
    counts of what others had meanwhile: a probe alone does not see who came and went.

    `pinned`: what is measured runs on the first of our cores, as own_process.on_cores has it; else on any of them,
    where what others have of some leaves room on the rest. `shares`: each answer, of no more cores than there are,
    however many threads share them. The probe needs a compiler, and counts half a second; empty where neither could
    say.
    """

    def __init__(self, cores: int, *, pinned: bool) -> None:
        self.cores, self.shares = min(cores, len(allowed_cores())), list[float]()
        self.watched = allowed_cores()[:cores] if pinned else allowed_cores()

    @contextmanager
    def during(self) -> Iterator[None]:
        """Around all that is measured: count the CPU time of others, and ask the probe before and after."""
        self._ask_probe()
        with self.counted():
            yield
        self._ask_probe()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A part of it, so that a second in which others came is not lost in minutes."""
        others = Others(self.watched)
        yield
        share = others.share()
        self.shares += [] if share is None else [min(1.0, (1 - share) * len(self.watched) / self.cores)]

    def note(self) -> str | None:
        """That others are at work, by the lowest share; None where none are."""
        return ceilings.others_at_work(min(self.shares), self.cores) if self.shares else None

    def _ask_probe(self) -> None:
        if missing_compiler() is not None:
            return
        try:
            self.shares.append(ceilings.cores_had(self.cores))
        except Readable:  # a compiler that does not compile
            return
