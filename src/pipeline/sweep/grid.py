"""A grid: plan it, run what has to run, report the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from pipeline.cli.streams import say
from pipeline.errors import UserError, plural
from pipeline.machine.capability import converts_bfloat16
from pipeline.runs import dynamic_imports
from pipeline.runs.code.code_hash import code_sha256
from pipeline.runs.result import Result, count
from pipeline.runs.run import Run
from pipeline.sweep import differences, summary, texts
from pipeline.sweep.claims import Claims, Shared
from pipeline.sweep.compose import Composer
from pipeline.sweep.cut_short import cut_short
from pipeline.sweep.entries import entries_of
from pipeline.sweep.history import History
from pipeline.sweep.notes import below_table
from pipeline.sweep.plan import Cell, Decision, Verdict, compose_cell, decide, nothing_runs, varied_by
from pipeline.sweep.schedule import Outcome
from pipeline.sweep.search_metric import check_best
from pipeline.sweep.session import MakeExecutor, Session, edited_meanwhile, write
from pipeline.tracking.tracker import left_behind

WORDS: dict[Verdict, str] = {
    "run": "to run",
    "elsewhere": "running elsewhere",
    "done": "finished before",
    "failed": "failed before",
    "skipped": "impossible here",
}


def run_grid(
    composer: Composer, overrides: Sequence[Sequence[str]], executor: MakeExecutor, check: Callable[[], None]
) -> int:
    """Run every cell that has not run before. Returns the exit status: 1 where a cell failed.

    `check` refuses settings of the launcher with which no cell could run.
    """
    from pipeline.cli.terminal import messages, results

    cells, twice = _distinct(compose(composer, overrides))
    first = next((cell for cell in cells if cell.experiment), None)
    if first is None or first.experiment is None:
        raise nothing_runs([cell.impossible for cell in cells])
    settings, root = first.experiment.sweep, Path(first.experiment.settings.output_dir)
    check_best(settings, (cell.experiment for cell in cells if cell.experiment is not None))
    cells = [replace(cell, sought=settings.best) for cell in cells]
    history = History(root)
    decisions = decide(cells, settings, history)
    console = results() if settings.dry_run else messages()
    composer.say_latest(console)
    for line in twice:
        say(console, line)
    if settings.dry_run:
        announce(console, decisions, every=True)
        return 0
    if any(one.verdict in ("run", "elsewhere") for one in decisions):
        check()
    announce(console, decisions, every=False)
    # What runs elsewhere is waited for, and runs here where nothing comes of it.
    decisions = [replace(one, verdict="run") if one.verdict == "elsewhere" else one for one in decisions]
    outcomes: list[Outcome] = []
    runs = any(decision.verdict == "run" for decision in decisions)
    stopped = None if runs else cut_short(root, _grid(decisions), decisions)
    if stopped is not None:
        say(console, f"{stopped.name} was killed before it had written all that came out: it is written anew")
    if runs or stopped is not None:
        name = None if "name" in first.swept else composer.config(overrides[0]).get("name")
        outcomes = record(str(name or "grid"), first, decisions, executor, console, history)
    elif lacking := left_behind([decision.run for decision in decisions if decision.run is not None]):
        say(console, lacking)  # the next run sends it, and this is none
    found = entries_of(decisions, outcomes)
    summary.show(results(), found, settings)
    for note in below_table(found, summary.shown(found, settings)):
        say(console, note)
    return 1 if any(entry.state not in ("done", "skipped", "pruned") for entry in found) else 0


def compose(composer: Composer, overrides: Sequence[Sequence[str]]) -> list[Cell]:
    """The checked cells."""
    split = [varied_by(words) for words in overrides]
    counts = {key: len({cell.get(key) for cell in split}) for cell in split[:1] for key in cell}
    swept = [key for key, count in counts.items() if count > 1]
    fixed = [key for key in swept if key.partition(".")[0] in ("sweep", "output_dir")]
    if fixed:
        raise UserError(f"{fixed[0]}: holds for the whole grid; give it one value")
    found = []
    for number, words in enumerate(overrides):
        varied = {key: split[number][key] for key in swept}
        found.append(compose_cell(composer, number, varied, words))
    return found


def _distinct(cells: Sequence[Cell]) -> tuple[list[Cell], list[str]]:
    """The cells without those that repeat another, as 1.0 beside 1, and a line for each of the latter."""
    kept: list[Cell] = []
    lines: list[str] = []
    by_hash: dict[str, list[Cell]] = {}
    for cell in cells:
        alike = by_hash.setdefault(cell.experiment.config_sha256(), []) if cell.experiment else []
        same = next((one for one in alike if _unnamed(one) == _unnamed(cell)), None)
        if same is None:
            alike.append(cell)
            kept.append(cell)
        else:
            lines.append(f"{cell.label}: the same settings as {same.label}; runs once")
    return kept, lines


def _unnamed(cell: Cell) -> Mapping[str, object]:
    """A cell's whole config, but for a name that it was given as a cell."""
    return cell.config if "name" in cell.swept else {**cell.config, "name": None}


def announce(console: Console, decisions: Sequence[Decision], *, every: bool) -> None:
    """What will run and why, and what will not."""
    counts = Counter(decision.verdict for decision in decisions)
    parts = [f"{counts[verdict]} {word}" for verdict, word in WORDS.items() if counts[verdict]]
    say(console, f"{plural(len(decisions), 'cell')}: {', '.join(parts)}")
    new = all(decision.reason == "new" for decision in decisions if decision.verdict == "run")
    for verdict, word in WORDS.items():
        listed = [decision for decision in decisions if decision.verdict == verdict]
        if not every and (verdict == "done" or (verdict == "run" and new)):
            continue
        each = [f"{decision.cell.label}: {decision.reason}" for decision in listed]
        for line in each if every else _by_reason(listed):
            say(console, f"  {word}: {line}")
    todo = [decision.cell for decision in decisions if decision.verdict == "run"]
    for line, number in Counter(filter(None, map(_slow, todo))).items():
        say(console, f"{number} of {plural(len(todo), 'cell')} to run: {line}")


def _slow(cell: Cell) -> str | None:
    """What makes a cell slow on this machine, which its own output says too."""
    reads = cell.resolved is not None and cell.runnable.reads("precision")
    return converts_bfloat16(cell.resolved) if cell.resolved is not None and reads else None


def record(
    name: str, first: Cell, decisions: Sequence[Decision], make: MakeExecutor, console: Console, history: History
) -> list[Outcome]:
    """Run the cells as one run, called `name`."""
    settings = first.runnable.sweep
    todo = [decision.cell for decision in decisions if decision.verdict == "run"]
    about = {"grid": _grid(decisions), "sweep": dict(first.runnable.config["sweep"]), "cells": len(decisions)}

    def keep(run: Run, outcomes: Sequence[Outcome]) -> None:
        found = entries_of(decisions, outcomes)
        summary.write_csv(run.artifact("grid.csv"), found)
        differences.write_csv(run.artifact(differences.FILE), found, settings)
        counts = Counter(entry.state for entry in found)
        metrics = (count(f"cells/{state.replace(' ', '_')}", number) for state, number in sorted(counts.items()))
        tables = (summary.table(found, settings),)
        notes = (*summary.notes(found, settings), *below_table(found, summary.shown(found, settings)))
        rows = tuple(texts.of_cells(found))
        result = Result(tuple(metrics), rows, notes=notes, tables=tables, title=name)
        write(run, result, lambda: summary.draw(run.artifact("grid.png"), found, run.id, settings))

    planned = {cell.number: code_sha256(cell.runnable) for cell in todo}
    claims = Claims(history.root)
    if claims.problem is not None:
        say(console, claims.said())
    session = Session(name, first.runnable, about, console)
    cells = Shared(todo, history, claims, partial(say, console))
    again = "runs all cells again, from their beginnings" if settings.retry == "all" else "resumes"
    outcomes = session.run(cells, make, decisions, len(todo), keep, again=again)
    if said := edited_meanwhile(outcomes, planned):
        say(console, f"{said}; the same command then runs the cells of older code again")
    runs = [*(decision.run for decision in decisions), *(outcome.run for outcome in outcomes)]
    if beside := dynamic_imports.edited(dynamic_imports.imported_by(runs)):
        say(
            console,
            f"{', '.join(beside)} was edited while the cells ran: not all ran the current version; "
            "the same command runs the others again",
        )
    return outcomes


def _by_reason(decisions: Sequence[Decision]) -> list[str]:
    """One line for all cells of one reason; sweep.dry_run has a line for each."""
    reasons: dict[str, list[str]] = {}
    for decision in decisions:
        reasons.setdefault(decision.reason, []).append(decision.cell.label)
    more = [f" and {len(labels) - 1} more" if len(labels) > 1 else "" for labels in reasons.values()]
    return [f"{labels[0]}{rest}: {reason}" for (reason, labels), rest in zip(reasons.items(), more, strict=True)]


def _grid(decisions: Sequence[Decision]) -> dict[str, str]:
    """Each swept key with its values, joined by commas."""
    values: dict[str, list[str]] = {}
    for decision in decisions:
        for key, value in decision.cell.swept.items():
            if value not in values.setdefault(key, []):
                values[key].append(value)
    return {key: ",".join(found) for key, found in values.items()}
