"""Two sweeps at once: each cell is claimed before it starts, and what another command runs is waited for, not repeated.

A claim is a lock on one byte of `<output_dir>/.claims`, at the offset that the hash of the cell's config gives. The
kernel drops it when the claimant ends, however it ends, so that no claim outlives its process: fcntl(2), F_SETLK.

What holds. Between processes of one machine, containers too: always. Between machines: where their shared file system
passes these locks on, as NFS 4 does, NFS 3 with lockd, Lustre with `-o flock`, GPFS and CephFS. Where it does not, each
machine has its own claims; two grids may then run a cell twice, and both results are kept.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.runs.lookup import is_live
from pipeline.runs.records import duration
from pipeline.sweep.history import History, Past
from pipeline.sweep.plan import Cell, past_of
from pipeline.sweep.schedule import Outcome, Source

NAME = ".claims"
AGAIN_SECONDS = 1.0  # between two attempts at cells that another command runs


class Claims:
    """The claims of this process. Of one folder there may be one object: closing a second would drop all locks.

    `problem`: why nothing can be claimed; None where it can.
    """

    def __init__(self, root: Path) -> None:
        self.path, self.file = root / NAME, -1
        self.problem: str | None = None
        try:
            root.mkdir(parents=True, exist_ok=True)
            self.file = _open(self.path)
        except OSError as error:
            self.problem = error.strerror or type(error).__name__

    def said(self) -> str:
        """What follows from the problem."""
        file = os.path.relpath(self.path)
        return f"{file}: {self.problem}; another command at the same time may run the same cells again"

    def take(self, key: str) -> bool:
        """Claim what has this SHA-256; False where another process has it."""
        if self.problem is not None:
            return True
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(key))
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: fcntl(2) allows both
            return False
        except OSError:  # a file system without locks: nobody can claim anything
            return True
        return True

    def release(self, key: str) -> None:
        """Give a claim back."""
        with suppress(OSError, ValueError):  # a file that is not open
            fcntl.lockf(self.file, fcntl.LOCK_UN, 1, _offset(key))


class Shared(Source):
    """The cells of a grid in turn, but for those that another command runs now: these come last.

    When such a run has ended, its result is this grid's too (`taken`); where it has none, the cell runs here.
    `history`: as it was when the grid was planned; results that it had then have been decided about.
    """

    def __init__(self, cells: Sequence[Cell], history: History, claims: Claims, say: Callable[[str], None]) -> None:
        self.history, self.claims, self.say = history, claims, say
        self.before = dict(history.ended)
        self.fresh, self.theirs = list(cells), list[Cell]()
        kinds: dict[tuple[object, ...], int] = {}
        self.needs = {cell.number: kinds.setdefault(_needs(cell), len(kinds)) for cell in cells}
        self.kinds = len(kinds)
        self.running: set[str] = set()  # keys of cells that run here: of two that share one, the second waits
        self.outcomes: list[Outcome] = []
        self.try_again, self.waited_for = 0.0, 0

    def next(self, fits: Callable[[Cell], bool]) -> Cell | None:
        cell = self._first_free(self.fresh, fits)
        if cell is None and not self.fresh and time.monotonic() >= self.try_again:
            cell = self._first_free(self.theirs, fits)
            self.try_again = 0.0 if cell else time.monotonic() + AGAIN_SECONDS
            others = sum(one.key not in self.running for one in self.theirs)
            if others > self.waited_for:
                self.waited_for = others
                self.say(f"waiting for another command, which runs {self.waited_for} of these cells")
        return cell

    @property
    def waits(self) -> bool:
        return bool(self.theirs)

    @property
    def more(self) -> bool:
        return bool(self.fresh or self.theirs)

    def taken(self) -> list[Outcome]:
        found, self.outcomes = self.outcomes, []
        return found

    def ended(self, outcome: Outcome) -> Outcome:
        """Others may have the cell, now that its run has ended."""
        self.running.discard(outcome.cell.key)
        self.claims.release(outcome.cell.key)
        return outcome

    def _first_free(self, cells: list[Cell], fits: Callable[[Cell], bool]) -> Cell | None:
        """The first cell that could start, that nobody runs and that has no result, claimed.

        Those that could not start now stay where they are: claimed, they would keep other commands from running them.
        The others go where they belong.
        """
        full: set[int] = set()  # kinds of cells of which none could start now
        for cell in tuple(cells):
            kind = self.needs[cell.number]
            if kind in full:
                continue
            if not fits(cell):
                full.add(kind)
                if len(full) == self.kinds:
                    return None
                continue
            del cells[next(at for at, one in enumerate(cells) if one is cell)]
            if cell.key in self.running or not self.claims.take(cell.key):
                self.theirs.append(cell)
                continue
            self.history.refresh()
            past = self._since_planned(cell)
            live = any(is_live(run.folder, run.status) for run in past)
            result = next((run for run in past if run.status.state in ("FINISHED", "FAILED")), None)
            if not live and result is None:
                self.running.add(cell.key)
                return cell
            self.claims.release(cell.key)
            if result is not None:
                self.outcomes.append(_outcome(cell, result))
            else:
                self.theirs.append(cell)
        return None

    def _since_planned(self, cell: Cell) -> list[Past]:
        """Runs of the same experiment, the newest first, that are not as they were when this grid was planned: one that
        was killed may have gone on."""
        past = past_of(cell, self.history)
        return [run for run in past if not run.differs and self.before.get(run.folder.name) != run.status.state]


def _open(path: Path) -> int:
    """The file of claims, which every user of the folder may lock whatever the umask of the one who makes it."""
    try:  # with O_CREAT another user's file is refused in a folder like /tmp: proc(5), protected_regular
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o666)
    with suppress(OSError):  # it is another user's
        os.fchmod(file, 0o666)
    return file


def _outcome(cell: Cell, run: Past) -> Outcome:
    """How a cell has ended that another command ran."""
    status = run.status
    reason = f"run by another command as {run.folder.name}"
    if status.state == "FAILED":
        reason = f"{status.error or 'no reason noted'} ({reason})"
    return Outcome(cell, status.state, reason, duration(run.folder, status) or 0.0, run.folder)


def _needs(cell: Cell) -> tuple[object, ...]:
    """What of a cell decides whether it could start; alike for cells of which all could, or none."""
    return cell.kind, repr(cell.runnable.device), repr(cell.runnable.backend)


def _offset(key: str) -> int:
    return int(key[:15], 16)  # 60 bits: file offsets are signed, and have 63
