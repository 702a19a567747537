"""The open run: what a stage may touch. Its folder, through the journal; progress on the terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.exits import stop_held_back
from pipeline.cli.streams import say
from pipeline.runs.journal import Journal
from pipeline.runs.result import Metric, values

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.experiment.training import Checkpoints
    from pipeline.runs.checkpoint import Checkpoint
    from pipeline.runs.fit import Observation
    from pipeline.runs.weights import Weights

Watcher = Callable[[int, "Weights"], None]
TENTHS = 10  # the lines of a training without epochs
LONGEST_SILENCE_S = 60.0  # of a training, or a test, that writes to a file


class Run:
    """The open run."""

    def __init__(
        self,
        journal: Journal,
        console: Console,
        checkpoint: Checkpoint | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.journal, self.console = journal, console
        self.checkpoints = checkpoints  # when it writes some; None: never
        self.started = time.perf_counter()
        self.marks: dict[str, float] = {}
        self.listeners: list[Callable[[int, Mapping[str, float]], None]] = []
        self.watchers: list[Watcher] = []  # called with the step and the weights after each validation
        self.recorders: list[Callable[[Mapping[str, float], int], None]] = []
        self.check_seen: Callable[[Observation], None] = lambda _: None  # called when a step has been observed
        self.last_epoch: tuple[Metric, ...] = ()
        self.checkpoint = checkpoint  # that the run goes on from
        # For the result, beside the stage's own; of a run that goes on with those from before.
        self.notes: list[str] = [] if checkpoint is None else list(checkpoint.progress.get("notes", ()))
        self.earlier_s = 0.0 if checkpoint is None else float(checkpoint.progress["seconds"])  # before that
        self.identity: dict[str, object] = {}  # what a run that goes on has to share, beside its receipt
        self.imported: Callable[[], Mapping[str, Any]] = dict  # the user's modules by names that no code spells out
        self.profile: dict[str, Any] | None = None  # what a profiler has seen (profilers/session.py)

    @property
    def folder(self) -> Path:
        return self.journal.folder

    @property
    def id(self) -> str:
        return self.journal.id

    @stop_held_back()
    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One record of the journal, also for the recorders: `recorder(metrics, step)`."""
        self.journal.log(metrics, step)
        for recorder in self.recorders:
            recorder(metrics, step)

    @stop_held_back()
    def end_epoch(self, epoch: int, metrics: Sequence[Metric], step: int) -> None:
        """One record, on the disk at once; the listeners are called with it: `listener(epoch, metrics)`."""
        self.last_epoch = tuple(metrics)
        found = values(metrics)
        self.log(found, step)
        self.journal.flush()
        for listener in self.listeners:
            listener(epoch, found)

    def artifact(self, relative: str) -> Path:
        """Where to write a file that belongs to the run (its folder exists)."""
        return self.journal.artifact_path(relative)

    def mark(self, name: str) -> None:
        """Remember when something first happened, in seconds since the command was given."""
        self.marks.setdefault(name, seconds_since_start())

    @stop_held_back()
    def say(self, text: str) -> None:
        """A line for the person at the terminal."""
        say(self.console, text)

    def note(self, text: str) -> None:
        """As `say`, once; it stays among the notes of the run's result."""
        if text not in self.notes:
            self.notes.append(text)
            self.say(text)

    def progress(self, what: str, total: int, lines: int = 0) -> Progress:
        """A progress bar on a terminal; elsewhere a line for each note, and `lines` of them on the way."""
        return Progress(self.console, what, total, lines)


class Progress:
    """One bar. Drawn twice a second at most: drawing takes the interpreter from the training loop.

    Without a terminal (a file, Slurm) there is a line after each of `lines` equal parts of the whole, and one where
    nothing was printed for a while.
    """

    def __init__(
        self, console: Console, what: str, total: int, lines: int = 0, *, silent_s: float = LONGEST_SILENCE_S
    ) -> None:
        self.console, self.bar, self.task = console, None, None
        self.what, self.total, self.lines, self.silent_s = what, total, lines, silent_s
        self.done, self.printed = 0, time.monotonic()
        if console.is_terminal:
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn(what),
                BarColumn(bar_width=None),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[state]}"),
                console=console,
                transient=True,
                refresh_per_second=2,
                expand=True,
            )
            self.task = self.bar.add_task(what, total=total, state="")
            self.bar.start()

    @stop_held_back()
    def advance(self, steps: int, state: str) -> None:
        """That many steps more, and how things stand."""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, advance=steps, state=state)
            return
        before, self.done = self.done, self.done + steps
        part = self.done * self.lines // self.total > before * self.lines // self.total
        if steps and (part or time.monotonic() - self.printed >= self.silent_s):
            self.note(f"{self.what} {min(100, 100 * self.done / self.total):.0f} %  {state}")

    @stop_held_back()
    def note(self, text: str) -> None:
        """A line that stays, above the bar."""
        self.printed = time.monotonic()
        say(self.console, text)

    @stop_held_back()
    def close(self) -> None:
        """Take the bar down. Calling it twice does no harm."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def seconds_since_start() -> float:
    """Seconds since this process was started, the interpreter's own start included, to a clock tick (10 ms).

    Both are counted from boot, proc(5) and clock_gettime(2): the wall time of boot is known in whole seconds only, and
    moves when the clock is set.
    """
    started = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
