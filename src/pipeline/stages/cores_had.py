"""Whether other processes had the cores while a stage measured: rates are then theirs as well."""

from __future__ import annotations

from pipeline.errors import Readable
from pipeline.kernels.cpu import ceilings
from pipeline.kernels.cpu.compiled import missing_compiler
from pipeline.machine.others import Others


class CoresHad:
    """The share of the cores that were there for a stage whenever it is asked, before and after it measures.

    By a probe, which has less than all of them where others are at work; without a compiler by Linux's counts of what
    others had since this was made. `shares`: each answer; empty where neither could say.
    """

    def __init__(self, cores: int) -> None:
        self.cores, self.shares = cores, list[float]()
        self.others = Others()

    def ask(self) -> None:
        """Now."""
        share = self._of_probe()
        if share is None and (others := self.others.share()) is not None:
            share = 1 - others
        self.shares += [] if share is None else [share]

    def note(self) -> str | None:
        """That others are at work, by the lowest share; None where none are."""
        return ceilings.others_at_work(min(self.shares), self.cores) if self.shares else None

    def _of_probe(self) -> float | None:
        if missing_compiler() is not None:
            return None
        try:
            return ceilings.cores_had(self.cores)
        except Readable:  # a compiler that does not compile
            return None
