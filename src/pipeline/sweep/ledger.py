"""How a sweep stands: live on a terminal, a line for each cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from pipeline.cli.streams import say
from pipeline.contracts import Dataset, Stage
from pipeline.report.table import figure_of, seconds
from pipeline.runs.records import read_metrics
from pipeline.runs.result import Metric, judged_by, metrics_of, read_result
from pipeline.sweep.plan import Cell, Decision
from pipeline.sweep.schedule import Outcome
from pipeline.tracking.record import note_cell

REFRESH_SECONDS = 0.5


class Ledger:
    """Counts, what runs now, time left; and each cell's main figure when it ends.

    `queues`: as the executor's. A cell that is in a queue waits until its run has begun.
    """

    def __init__(
        self,
        console: Console,
        folder: Path,
        decisions: Sequence[Decision],
        total: int | None,
        *,
        queues: bool = False,
    ) -> None:
        self.console, self.folder, self.queues = console, folder, queues
        self.decisions, self.total = decisions, total  # total: cells to run; None where a search decides
        self.running: dict[int, tuple[Cell, float]] = {}
        self.again: Set[int] = frozenset()  # of those, the cells whose jobs are back in the queue
        self.outcomes: list[Outcome] = []
        self.began, self.drawn = time.monotonic(), 0.0
        self.latest_end = self.began
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self.silent = self.live is None and not queues  # in a queue nothing runs yet

    def __enter__(self) -> Ledger:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def started(self, cell: Cell) -> None:
        """Note that a cell's process was asked for, and draw it."""
        if not self.queues:
            self.running[cell.number] = (cell, time.monotonic())
        self._draw()

    def became(self, cell: Cell, run: Path) -> None:
        """A cell has a run now: its grid's tracker follows it from here."""
        self.running.setdefault(cell.number, (cell, time.monotonic()))
        note_cell(self.folder, run)

    def ended(self, outcome: Outcome) -> None:
        """Note how a cell ended, and print it as a line that stays."""
        self.running.pop(outcome.cell.number, None)
        self.outcomes.append(outcome)
        self.latest_end = time.monotonic()
        of = "" if self.total is None else f"/{self.total}"
        progress = f"[{len(self.outcomes):>{len(of) - 1}}{of}]" if of else f"[{len(self.outcomes)}]"
        text = Text.assemble(
            (f"{progress} ", "dim"), (f"{word_of(outcome):<8}", colour_of(outcome)), named(outcome.cell)
        )
        text.append(f"  {outcome_text(outcome)}")
        text.append(f"  {seconds(outcome.seconds)}", "dim")
        self.console.print(text, soft_wrap=True)
        self._draw()

    def queued_again(self, numbers: Set[int]) -> None:
        """Cells that had begun, and wait until their jobs are started again."""
        for number in self.again - numbers:
            if number in self.running:
                self.running[number] = (self.running[number][0], time.monotonic())
        self.again = numbers

    def tick(self) -> None:
        """Redraw, twice a second at most. Elsewhere say once how many run at a time: the first may take hours."""
        if self.silent and self.running:
            self.silent = False
            say(self.console, self.counts().plain.rpartition("   ")[0])
        if time.monotonic() - self.drawn >= REFRESH_SECONDS:
            self._draw()

    def _draw(self) -> None:
        self.drawn = time.monotonic()
        if self.live:
            rows = [self.counts(), *self._time_left(), *(self._row(cell, since) for cell, since in self._running())]
            self.live.update(Group(*rows), refresh=True)

    def _running(self) -> list[tuple[Cell, float]]:
        return [one for number, one in self.running.items() if number not in self.again]

    def counts(self) -> Text:
        """One line: done, failed, killed where some were, skipped, running, waiting, time."""
        killed = sum(outcome.state == "KILLED" for outcome in self.outcomes)  # these go on
        failed = sum(not outcome.done for outcome in self.outcomes) - killed
        earlier = [decision.verdict for decision in self.decisions]
        parts = [f"{len(self.outcomes) - failed - killed + earlier.count('done')} done"]
        parts += [f"{failed + earlier.count('failed')} failed", *([f"{killed} killed"] if killed else [])]
        parts += [f"{earlier.count('skipped')} skipped"]
        running = len(self._running())
        parts.append(f"{running} running")
        if self.total is not None:
            parts.append(f"{self.total - len(self.outcomes) - running} waiting")
        text = f"{' · '.join(parts)}   {seconds(time.monotonic() - self.began)}"
        return Text(text, style="bold", no_wrap=True, overflow="ellipsis")

    def _time_left(self) -> list[Text]:
        """By the time of a cell until now: less while one runs, but never less than those that wait will take."""
        if self.total is None or not self.outcomes:
            return []
        each = (self.latest_end - self.began) / len(self.outcomes)
        left = self.total - len(self.outcomes)
        expected = max(each * left - (time.monotonic() - self.latest_end), each * (left - len(self._running())))
        return [Text(f"  about {seconds(expected)} left", style="bold")] if expected > 0 else []

    def _row(self, cell: Cell, since: float) -> Text:
        text = f"  running  {named(cell)}  {time.monotonic() - since:.0f} s"
        return Text(text, style="cyan", no_wrap=True, overflow="ellipsis")


def named(cell: Cell) -> str:
    """A cell by its label; of a search also by the number of its trial, as trials need not end in their order."""
    return f"trial {cell.number + 1}  {cell.label}" if cell.of_search else cell.label


def word_of(outcome: Outcome) -> str:
    """How a cell ended in one word: done, failed, killed or pruned."""
    return {"FINISHED": "done"}.get(outcome.state, outcome.state.lower())


def colour_of(outcome: Outcome) -> str:
    return {"FINISHED": "green", "PRUNED": "yellow"}.get(outcome.state, "red")


def outcome_text(outcome: Outcome) -> str:
    """The main figure of a finished cell, or why there is none."""
    if not outcome.done:
        return outcome.reason
    metrics = metrics_of(outcome.run)
    name = outcome.cell.sought or judged_by(metrics, *headlines(outcome.cell))
    if outcome.cell.sought is None and name not in metrics:
        name = next(iter(undeclared(metrics)), name)
    found = _last(outcome.run, name)
    if found is None:
        return escape(outcome.reason)
    text = f"{name} {figure_of(found.value, found.kind)} {found.unit}".rstrip()
    return text + (f" ({outcome.reason})" if outcome.reason else "")


def undeclared(metrics: Mapping[str, Metric]) -> list[str]:
    """The results by name, those of the validation data first, then those of the test: what is shown of a training that
    declares nothing of its metrics.
    """
    names = [one.name for one in metrics.values() if one.kind == "result" and one.role == "value"]
    return sorted(
        names, key=lambda name: next((at for at, word in enumerate(("val", "test")) if name.startswith(word)), 2)
    )


def _last(run: Path | None, name: str) -> Metric | None:
    """A metric of the run's result or last epoch, or the last value that its journal has of that name."""
    result = read_result(run) if run else None
    for metric in (*result.metrics, *result.last_epoch) if result else ():
        if metric.name == name:
            return metric
    logged = [one.metrics[name] for one in read_metrics(run) if name in one.metrics] if run else []
    return Metric(name, logged[-1]) if logged else None


def headlines(cell: Cell) -> tuple[str, ...]:
    """The metric that a cell is judged by, and those that stand in for it, in their order: that of its stage, or of its
    task where the stage says none.
    """
    if cell.experiment is None:
        return (Stage.headline,)
    stage, dataset = cell.experiment.stage, cell.experiment.dataset
    silent = stage.headline == Stage.headline
    of_task = dataset.task.headline if silent and isinstance(dataset, Dataset) else None
    return (*([of_task] if of_task else []), stage.headline, *stage.otherwise)
