"""A grid: plan it, run what has to run, tell what came out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import Stopped, UserError
from pipeline.journal import Journal
from pipeline.sweep import Sweep, summary
from pipeline.sweep.compose import Composer
from pipeline.sweep.ledger import Ledger
from pipeline.sweep.plan import Cell, Decision, Verdict, check, decide
from pipeline.sweep.schedule import Executor, Listed, Outcome, Schedule

WORDS: dict[Verdict, str] = {
    "run": "to run",
    "done": "finished before",
    "failed": "failed before",
    "skipped": "impossible here",
}

MakeExecutor = Callable[[Sweep, Path], Executor]


def run_grid(composer: Composer, overrides: Sequence[Sequence[str]], executor: MakeExecutor) -> int:
    """Run every cell that has not run before. Returns the exit status: 1 where a cell failed."""
    from pipeline.terminal import messages, results

    cells = compose(composer, overrides)
    first = next((cell for cell, _ in cells if cell.experiment), None)
    if first is None or first.experiment is None:
        raise UserError(f"none of the {len(cells)} cells can run here; the first: {cells[0][1]}")
    settings, root = first.experiment.sweep, Path(first.experiment.settings.output_dir)
    decisions = decide(cells, settings, root)
    if settings.dry_run:
        announce(results(), decisions, every=True)
        return 0
    console = messages()
    announce(console, decisions, every=False)
    outcomes: list[Outcome] = []
    if any(decision.verdict == "run" for decision in decisions):
        outcomes = record(first, overrides, decisions, executor, console)
    found = summary.entries(decisions, outcomes)
    summary.show(results(), found)
    return 1 if any(entry.state not in ("done", "skipped", "pruned") for entry in found) else 0


def compose(composer: Composer, overrides: Sequence[Sequence[str]]) -> list[tuple[Cell, str | None]]:
    """The checked cells, each with why it cannot run here if it cannot."""
    split = [dict(text.replace("\\:", ":").split("=", 1) for text in words if "=" in text) for words in overrides]
    counts = {key: len({cell.get(key) for cell in split}) for cell in split[:1] for key in cell}
    swept = [key for key, count in counts.items() if count > 1]
    fixed = [key for key in swept if key.partition(".")[0] in ("sweep", "output_dir")]
    if fixed:
        raise UserError(f"{fixed[0]}: holds for the whole grid; give it one value")
    found = []
    for number, words in enumerate(overrides):
        varied = {key: split[number][key] for key in swept}
        found.append(check(number, varied, composer.config(words), composer.keys(words)))
    return found


def announce(console: Any, decisions: Sequence[Decision], *, every: bool) -> None:
    """What will run and why, and what will not."""
    counts = Counter(decision.verdict for decision in decisions)
    parts = [f"{counts[verdict]} {word}" for verdict, word in WORDS.items() if counts[verdict]]
    _say(console, f"{len(decisions)} cells: {', '.join(parts)}")
    new = all(decision.reason == "new" for decision in decisions if decision.verdict == "run")
    for verdict, word in WORDS.items():
        listed = [decision for decision in decisions if decision.verdict == verdict]
        if not every and (verdict == "done" or (verdict == "run" and new)):
            continue
        each = [f"{decision.cell.label}: {decision.reason}" for decision in listed]
        for line in each if every else _by_reason(listed):
            _say(console, f"  {word}: {line}")


def record(
    first: Cell,
    overrides: Sequence[Sequence[str]],
    decisions: Sequence[Decision],
    executor: MakeExecutor,
    console: Any,
) -> list[Outcome]:
    """Run the cells as one run of their own: a journal, an MLflow run, the table and the figure as artifacts."""
    from pipeline.run import Run
    from pipeline.tracking import start

    assert first.experiment is not None
    experiment = first.experiment
    config = {"grid": _grid(decisions), "sweep": dict(experiment.config["sweep"]), "cells": len(decisions)}
    journal = Journal.begin(Path(experiment.settings.output_dir), "grid", config)
    run = Run(journal, console)
    todo = [decision.cell for decision in decisions if decision.verdict == "run"]
    tracker = start(experiment.tracking, journal)
    given_up = None
    with Ledger(console, journal.folder, decisions, len(todo)) as ledger:
        schedule = Schedule(
            Listed(todo), executor(experiment.sweep, journal.folder), experiment.sweep, journal.folder, ledger
        )
        try:
            given_up = schedule.run()
        except Stopped as stop:
            keep(run, decisions, schedule.outcomes)
            journal.finish("KILLED", f"stopped by {stop.signal_name}")
            raise
        except BaseException as error:
            journal.finish("FAILED", error)
            raise
    _say(console, ledger.counts().plain)
    if given_up:
        _say(console, f"gave up: {given_up}")
    keep(run, decisions, schedule.outcomes)
    failed = sum(not outcome.done for outcome in schedule.outcomes)
    journal.finish(*(("FAILED", given_up or f"{failed} cells failed") if failed else ("FINISHED", None)))
    _say(console, f"grid folder {os.path.relpath(run.folder)}")
    if tracker is not None:
        _say(console, f"MLflow: {tracker.close(experiment.tracking.wait)}")
    return schedule.outcomes


def keep(run: Any, decisions: Sequence[Decision], outcomes: Sequence[Outcome]) -> None:
    """The table as a file, the figure, and the counts as the grid's own figures."""
    found = summary.entries(decisions, outcomes)
    summary.write_csv(run.artifact("grid.csv"), found)
    summary.draw(run.artifact("grid.png"), found, f"{run.id}")
    counts = Counter(entry.state for entry in found)
    scalars = {f"cells/{state.replace(' ', '_')}": number for state, number in sorted(counts.items())}
    run.journal.write_result({"scalars": scalars})


def _by_reason(decisions: Sequence[Decision]) -> list[str]:
    """One line for all cells of one reason; sweep.dry_run has a line for each."""
    reasons: dict[str, list[str]] = {}
    for decision in decisions:
        reasons.setdefault(decision.reason, []).append(decision.cell.label)
    more = [f" and {len(labels) - 1} more" if len(labels) > 1 else "" for labels in reasons.values()]
    return [f"{labels[0]}{rest}: {reason}" for (reason, labels), rest in zip(reasons.items(), more, strict=True)]


def _grid(decisions: Sequence[Decision]) -> dict[str, str]:
    """The swept keys with their values."""
    values: dict[str, list[str]] = {}
    for decision in decisions:
        for key, value in decision.cell.swept.items():
            if value not in values.setdefault(key, []):
                values[key].append(value)
    return {key: ",".join(found) for key, found in values.items()}


def _say(console: Any, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
