"""Running cells: as many at once as the executor has room for, each with its time limit, whatever the others do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.cli.exits import stop_held_back
from pipeline.errors import Stopped
from pipeline.experiment.settings import Sweep
from pipeline.runs.lookup import close_run
from pipeline.runs.records import TOO_LONG, duration, read_status
from pipeline.sweep.cell import (
    GRACE_SECONDS,
    Job,
    job_file,
    last_line,
    log_file,
    note_interrupt,
    run_of,
    runs_noted,
    write_job,
)
from pipeline.sweep.plan import Cell

POLL_SECONDS = 0.02
WAIT_SECONDS = 0.25  # where all that is left runs in another command: looking takes time from what it measures
QUEUE_POLL_SECONDS = 5.0  # at most, where cells wait in a queue: their journals lie on a file system that many share
PATIENCE = 0.1  # and no longer than this part of the time in which nothing has happened
IMPORT_SECONDS = 300.0  # what a worker may take until its cell's run begins: seconds, and minutes where others compute
WITHDRAWN = "withdrawn before it began, as the sweep was"
OVERTIME_SECONDS = 5.0  # for a cell past its time limit, until it is killed


@dataclass(frozen=True)
class Outcome:
    """How a cell that ran has ended. `state` is the run's, or FAILED for a cell that never became one.

    `died`: its process ended without a word, and nobody had stopped the sweep. It may do so each time, as where memory
    runs out.
    """

    cell: Cell
    state: str
    reason: str
    seconds: float
    run: Path | None
    died: bool = False

    @property
    def done(self) -> bool:
        return self.state in ("FINISHED", "PRUNED")


class TooLong(str):
    """The reason of a cell that its executor has ended at a time limit."""


class Cancelled(str):
    """The reason of a cell that was taken from its executor: by somebody, or with the node that it ran on."""


class Executor(Protocol):
    """Where cells run. One that is started ends up in `poll`, once, with the reason if it did not end by itself.

    `queues`: a cell that is started may wait, for as long as it takes, before its run begins.
    """

    queues: bool

    @property
    def queued(self) -> Set[int]:
        """The cells that waited in a queue at the last `poll`, also where they had begun before."""
        ...

    def room(self, cell: Cell) -> bool:
        """Whether this cell can start now."""
        ...

    def start(self, cell: Cell, job: Path) -> None:
        """Start a cell's process on its job file, at the latest in the next `poll`."""
        ...

    def poll(self) -> list[tuple[int, str | None]]:
        """The cells that have ended since the last call: number, and what is known of a violent end."""
        ...

    def stop(self, number: int, *, kill: bool) -> None:
        """Ask a cell to end, or end it."""
        ...

    def close(self) -> None:
        """End everything that is still there."""
        ...


class Source(Protocol):
    """Where cells come from: a grid's list, or a search that learns from those that have ended."""

    def next(self, fits: Callable[[Cell], bool]) -> Cell | None:
        """The next cell; None where there is none now.

        `fits` says whether a cell could start now. Those that could not are better left for later: a search has
        learned more by then, and another command may run them meanwhile. One that is given all the same waits.
        """
        ...

    def ended(self, outcome: Outcome) -> Outcome:
        """Learn how a cell has ended. Returns what the source makes of it."""
        ...

    @property
    def waits(self) -> bool:
        """Whether there will be more, when something has ended that this sweep does not run."""
        return False

    @property
    def more(self) -> bool:
        """Whether there are cells that have not been given, now or later."""
        return self.waits

    def taken(self) -> list[Outcome]:
        """Since the last call: cells that another command has run, now or before."""
        return []


class Watcher(Protocol):
    """What shows the state of the cells (the ledger)."""

    def started(self, cell: Cell) -> None: ...

    def became(self, cell: Cell, run: Path) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...

    def queued_again(self, numbers: Set[int]) -> None: ...

    def tick(self) -> None: ...


@dataclass
class Running:
    """A cell that has been started."""

    cell: Cell
    job: Path
    since: float
    run: Path | None = None
    stopping_since: float | None = None  # when it was asked to stop
    killed: bool = False
    withdrawn: bool = False  # from a queue, before its run began


class Schedule:
    """Runs the cells of a source.

    A signal stops it between two steps: a cell has started or has not, and one that has ended is among the outcomes.
    """

    def __init__(self, source: Source, executor: Executor, settings: Sweep, folder: Path, watcher: Watcher) -> None:
        self.source, self.executor, self.settings = source, executor, settings
        self.folder, self.watcher = folder, watcher
        self.running: dict[int, Running] = {}
        self.outcomes: list[Outcome] = []
        self.ran: list[Outcome] = []  # of those, the cells that ran here
        self.stopping = False  # by a signal: a cell that has not begun has not failed
        self.waiting: Cell | None = None  # fetched from the source, but there is no room yet
        self.changed = time.monotonic()  # when a cell last began or ended

    def run(self) -> str | None:
        """Until nothing is left. Returns why the sweep was given up, if it was. Raises Stopped after stopping cells."""
        try:
            while True:
                given_up = self._hopeless()
                if given_up:
                    self._withdraw()
                else:
                    self._start_what_fits()
                    self._take_over()
                if not self.running and (given_up or not self.source.waits):
                    return given_up if self._cells_left() else None
                self._look()
                time.sleep(self._pause())
        except Stopped as stop:
            note_interrupt(self.folder, stop.signal_name)
            self._stop_all()
            raise
        finally:
            self.executor.close()

    def _pause(self) -> float:
        if self.executor.queues:
            return pause(time.monotonic() - self.changed)
        return POLL_SECONDS if self.running else WAIT_SECONDS

    @stop_held_back()
    def _take_over(self) -> None:
        for outcome in self.source.taken():
            self.changed = time.monotonic()
            self.outcomes.append(outcome)
            self.watcher.ended(outcome)

    def _start_what_fits(self) -> None:
        while True:
            self.waiting = self.waiting or self.source.next(self.executor.room)
            if self.waiting is None or not self.executor.room(self.waiting):
                return
            cell, self.waiting = self.waiting, None
            self._start(cell)

    @stop_held_back()
    def _start(self, cell: Cell) -> None:
        job = job_file(self.folder, cell.number)
        write_job(job, Job(cell.number, cell.config, cell.keys, str(self.folder), cell.trial, tuple(cell.swept)))
        self.running[cell.number] = Running(cell, job, time.monotonic())
        self.watcher.started(cell)
        self.executor.start(cell, job)

    @stop_held_back()
    def _take_ended(self) -> None:
        for number, violent in self.executor.poll():
            self._end(self.running.pop(number), violent)

    def _withdraw(self) -> None:
        """Take back the cells that a queue has not begun: it has all of them from the start."""
        for running in self.running.values():
            if self.executor.queues and running.run is None and not running.withdrawn:
                running.withdrawn = True
                self.executor.stop(running.cell.number, kill=False)

    def _cells_left(self) -> bool:
        """Whether there are cells that a sweep that was given up has not run."""
        withdrawn = any(outcome.reason.startswith(WITHDRAWN) for outcome in self.outcomes)
        return withdrawn or self.waiting is not None or self.source.more

    def _look(self) -> None:
        self._take_ended()
        noted = runs_noted(self.folder) if self.executor.queues else set()  # one look for all that wait
        for running in self.running.values():
            if running.job.stem in noted or not (self.executor.queues or running.run):
                self._note_run(running)
            self._mind_the_time(running)
        self._note_queued_again()
        self.watcher.tick()

    def _note_queued_again(self) -> None:
        """Cells whose jobs a queue has taken back: the wait is not their runs' time, which begins anew."""
        again = {one.cell.number for one in self.running.values() if one.run is not None} & self.executor.queued
        for number in again:
            self.running[number].since = time.monotonic()
        self.watcher.queued_again(again)

    def _note_run(self, running: Running) -> None:
        """Which run the cell has become; another one where its job was started again."""
        found = run_of(running.job)
        if found is None or found == running.run:
            return
        if running.run is not None and is_open(running.run):
            close_run(running.run, "KILLED", "its job was started again")
        running.run, running.since = found, time.monotonic()
        self.changed = running.since
        self.watcher.became(running.cell, found)

    def _mind_the_time(self, running: Running) -> None:
        limit, now = self.settings.timeout, time.monotonic()
        if limit is not None and running.run is None:  # the import of a framework is not the cell's time
            limit = None if self.executor.queues else limit + IMPORT_SECONDS
        if limit is not None and running.stopping_since is None and now - running.since > limit:
            running.stopping_since = now
            self.executor.stop(running.cell.number, kill=False)
        elif (
            running.stopping_since is not None
            and not running.killed
            and now - running.stopping_since > OVERTIME_SECONDS
        ):
            running.killed = True
            self.executor.stop(running.cell.number, kill=True)

    def _end(self, running: Running, violent: str | None) -> None:
        self._note_run(running)
        self.changed = time.monotonic()
        if running.stopping_since is not None:
            violent = TooLong(f"{TOO_LONG}sweep.timeout={self.settings.timeout:g} s")
        alone = not self.stopping and not isinstance(violent, Cancelled)
        died = alone and running.run is not None and is_open(running.run)
        state, reason = self._verdict(running, violent)
        outcome = self.source.ended(Outcome(running.cell, state, reason, _took(running), running.run, died))
        self.outcomes.append(outcome)
        self.ran.append(outcome)
        self.watcher.ended(outcome)

    def _verdict(self, running: Running, violent: str | None) -> tuple[str, str]:
        """What the run's journal says; a run that could not say it is given its end here."""
        if running.run is None and running.withdrawn:
            return "KILLED", f"{WITHDRAWN} {'stopped' if self.stopping else 'given up'}"
        if running.run is None:
            reason = violent or last_line(log_file(running.job)) or "ended before it began"
            return "KILLED" if self.stopping or isinstance(violent, Cancelled) else "FAILED", reason
        status = read_status(running.run)
        if status is not None and status.state in ("FINISHED", "PRUNED"):
            return status.state, status.error or ""
        if isinstance(violent, TooLong):
            close_run(running.run, "FAILED", violent)
        elif status is not None and status.state == "RUNNING":
            close_run(running.run, "KILLED", violent or "its process ended without a message")
        status = read_status(running.run)
        return (status.state, status.error or "") if status else ("FAILED", "its status cannot be read")

    def _hopeless(self) -> str | None:
        """Why going on makes no sense: the first cells have all failed for one cause."""
        count = self.settings.stop_after
        ran = [one for one in self.ran if one.state != "KILLED" or one.died]  # without those that somebody stopped
        first = [_cause(outcome.reason) for outcome in ran[:count]]
        if not count or len(first) < count or any(outcome.done for outcome in ran[:count]):
            return None
        if len(set(first)) > 1:
            return None
        failed = "the first cell failed" if count == 1 else f"the first {count} cells all failed alike"
        return f"{failed} ({ran[0].reason}); sweep.stop_after=0 runs the others too"

    def _stop_all(self) -> None:
        self.stopping = True
        if not self.executor.queues:  # a queue would be given the cells that still wait
            self._take_ended()  # after a Ctrl-Z, cells may have begun, or ended, of which it has not heard
        for running in self.running.values():
            running.withdrawn = self.executor.queues and running.run is None
        for kill in (False, True):  # a cell that does not end in time is killed
            for number in self.running:
                self.executor.stop(number, kill=kill)
            end = time.monotonic() + GRACE_SECONDS
            while self.running and time.monotonic() < end:
                self._take_ended()
                time.sleep(self._pause())


def _took(running: Running) -> float:
    """Seconds of the cell's run, as all else says them of a run; of one that became none, since it was started."""
    status = None if running.run is None else read_status(running.run)
    took = None if running.run is None or status is None else duration(running.run, status)
    return time.monotonic() - running.since if took is None else took


class Listed(Source):
    """The cells of a grid, in turn."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = list(reversed(cells))

    @property
    def more(self) -> bool:
        return bool(self.cells)

    def next(self, fits: Callable[[Cell], bool]) -> Cell | None:
        return self.cells.pop() if self.cells and fits(self.cells[-1]) else None

    def ended(self, outcome: Outcome) -> Outcome:
        """A grid learns nothing."""
        return outcome


def pause(quiet: float) -> float:
    """Seconds until the queue is read again in which nothing has happened for `quiet` seconds."""
    return min(QUEUE_POLL_SECONDS, max(POLL_SECONDS, PATIENCE * quiet))


def is_open(run: Path) -> bool:
    """Whether a run's status says that it is still running."""
    status = read_status(run)
    return status is not None and status.state == "RUNNING"


def _cause(reason: str) -> str:
    """The reason without its numbers and names of runs."""
    return re.sub(r"\d+", "#", re.sub(r"\d{8}-\d{6}-\S+", "<run>", reason))
