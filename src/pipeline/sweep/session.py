"""A session of a sweep: its cells as one run, with a journal, an MLflow run above theirs, and a ledger."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.cli.streams import say
from pipeline.errors import Readable, Stopped, plural
from pipeline.experiment import Experiment
from pipeline.experiment.settings import Sweep
from pipeline.runs.beside import beside
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import disk_refused, read_json
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.sweep.ledger import Ledger
from pipeline.sweep.plan import Decision
from pipeline.sweep.schedule import Executor, Outcome, Schedule, Source
from pipeline.tracking.tracker import start

MakeExecutor = Callable[[Sweep, Path], Executor]
Keep = Callable[[Run, Sequence[Outcome]], None]


class Session:
    """`about`: what the journal keeps as the session's config."""

    def __init__(self, name: str, experiment: Experiment, about: Mapping[str, Any], console: Console) -> None:
        self.settings, self.tracking, self.console = experiment.sweep, experiment.tracking, console
        self.journal = Journal.begin(Path(experiment.settings.output_dir), name, about)
        try:
            self.tracker = start(self.tracking, self.journal)
        except BaseException as error:
            self.journal.finish("KILLED" if isinstance(error, Stopped) else "FAILED", error)
            raise

    def run(
        self,
        source: Source,
        make: MakeExecutor,
        decisions: Sequence[Decision],
        total: int | None,
        keep: Keep,
        *,
        again: str = "resumes",
    ) -> list[Outcome]:
        """Run the cells of `source`: see `run_below`. A cell that failed before counts too, as in the exit status."""
        run = Run(self.journal, self.console)
        try:
            outcomes, given_up = run_below(run, self.settings, source, make, decisions, total, keep, again=again)
        except Stopped as stop:
            self.journal.finish("KILLED", f"stopped by {stop.signal_name}")
            raise
        except BaseException as error:
            refused = disk_refused(error, self.journal.folder)
            self.journal.finish("FAILED", refused or error)
            if refused is not None:
                raise refused from error
            raise
        if given_up:
            say(self.console, f"gave up: {given_up}")
        failed = sum(not outcome.done for outcome in outcomes) + sum(one.verdict == "failed" for one in decisions)
        why = given_up or f"{plural(failed, 'cell')} failed"
        self.journal.finish(*(("FAILED", why) if failed else ("FINISHED", None)))
        say(self.console, f"folder {os.path.relpath(self.journal.folder)}")
        if self.tracker is not None:
            say(self.console, f"MLflow: {self.tracker.close(self.tracking.wait, partial(say, self.console))}")
        return outcomes


def write(run: Run, result: Result, draw: Callable[[], None]) -> None:
    """Keep what a sweep has found, with its figure. What hinders the figure is said, and kept too."""
    drawn = beside("figure: not drawn", draw)
    said = (*drawn.notes, *([drawn.failed] if drawn.failed else []))
    for line in said:
        say(run.console, line)
    run.journal.write_result(replace(result, notes=(*result.notes, *said)))


def edited_meanwhile(outcomes: Sequence[Outcome], planned: Mapping[int, str]) -> str | None:
    """In words, which cells ran other code than there was at the start: their processes were started after an edit.

    `planned`: the hashes of the code that the cells were to run, by number; those that had run before have none.
    """
    runs = [(one.cell, one.run) for one in outcomes if one.run is not None]
    ran = [(cell, read_json(run / "receipt.json").get("code_sha256")) for cell, run in runs]
    other = [cell.label for cell, code in ran if code not in (None, planned.get(cell.number, code))]
    if not other:
        return None
    more = f" and {len(other) - 1} more" if other[1:] else ""
    return f"the code was edited while the cells ran: {other[0]}{more} ran other code than was planned"


def run_below(
    run: Run,
    settings: Sweep,
    source: Source,
    make: MakeExecutor,
    decisions: Sequence[Decision],
    total: int | None,
    keep: Keep,
    *,
    again: str,
) -> tuple[list[Outcome], str | None]:
    """Run cells below the run, which is open and stays so: how they ended, and why they were given up, if they were.

    `keep` writes what came out, also where a signal stopped it or the executor could not go on. `again`: what the same
    command does after a signal, in words.
    """
    executor = make(settings, run.folder)
    with Ledger(run.console, run.folder, decisions, total, queues=executor.queues) as ledger:
        schedule = Schedule(source, executor, settings, run.folder, ledger)
        try:
            given_up = schedule.run()
        except Stopped:
            keep(run, schedule.outcomes)
            say(run.console, f"{ledger.counts().plain}; the same command {again}")
            raise
        except Readable:  # the executor cannot go on, and says what to do
            keep(run, schedule.outcomes)
            raise
    keep(run, schedule.outcomes)
    say(run.console, ledger.counts().plain)
    return schedule.outcomes, given_up
