"""A run: what a stage may touch (its folder, through the journal; progress on the terminal), and what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.exits import stop_held_back
from pipeline.runs.journal import Journal

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Grid:
    """A table of several columns, shown above the last one."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Result:
    """What a stage found: figures by name, rows for the table at the end, and what to tell above it.

    `failed`: what did not work out, of a stage that has something to tell all the same (some of its cells ended well).
    The run is then FAILED and the exit status 1.
    """

    metrics: Mapping[str, float]
    table: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    failed: str | None = None


class Run:
    """The open run."""

    def __init__(self, journal: Journal, console: Console) -> None:
        self.journal, self.console = journal, console
        self.started = time.perf_counter()
        self.marks: dict[str, float] = {}
        self.listeners: list[Callable[[int, Mapping[str, float]], None]] = []
        self.recorders: list[Callable[[Mapping[str, float], int], None]] = []
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
    def end_epoch(self, epoch: int, metrics: Mapping[str, float], step: int) -> None:
        """One record, on the disk at once, and a word to the listeners: `listener(epoch, metrics)`."""
        self.log(metrics, step)
        self.journal.flush()
        for listener in self.listeners:
            listener(epoch, metrics)

    def artifact(self, relative: str) -> Path:
        """Where to write a file that belongs to the run (its folder exists)."""
        return self.journal.artifact_path(relative)

    def mark(self, name: str) -> None:
        """Remember when something first happened, in seconds since the command was given."""
        self.marks.setdefault(name, seconds_since_start())

    @stop_held_back()
    def say(self, text: str) -> None:
        """A line for the person at the terminal."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def progress(self, what: str, total: int) -> Progress:
        """A progress bar on a terminal; elsewhere a line for each note."""
        return Progress(self.console, what, total)


class Progress:
    """One bar. Drawn twice a second at the most: drawing takes the interpreter from the training loop."""

    def __init__(self, console: Console, what: str, total: int) -> None:
        self.console, self.bar, self.task = console, None, None
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

    @stop_held_back()
    def note(self, text: str) -> None:
        """A line that stays, above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @stop_held_back()
    def close(self) -> None:
        """Take the bar down. Calling it twice does no harm."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def seconds_since_start() -> float:
    """Seconds since this process was started, the interpreter's own start included."""
    import psutil

    return time.time() - psutil.Process().create_time()
