"""A search by Optuna: trials are cells, asked for when there is room, reported when they end, pruned after an epoch.

The study lies in a journal file below output_dir, so that it is resumed by the same command (search_claim.py), and so
that a cell, in whatever process, reports its epochs to it.

Akiba et al., "Optuna" (KDD 2019); Li et al., "Hyperband" (JMLR 18, 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.streams import say
from pipeline.errors import UserError
from pipeline.experiment import Experiment
from pipeline.runs.dynamic_imports import edited
from pipeline.runs.result import Result
from pipeline.sweep import search_report, summary
from pipeline.sweep.claims import Claims
from pipeline.sweep.compose import Composer
from pipeline.sweep.entries import entries_of
from pipeline.sweep.history import History
from pipeline.sweep.notes import below_table
from pipeline.sweep.schedule import Outcome
from pipeline.sweep.search_cells import Cells
from pipeline.sweep.search_checks import check_comparable, epochs_of
from pipeline.sweep.search_claim import IMPORTED, Asked, claim
from pipeline.sweep.search_metric import check_every_epoch
from pipeline.sweep.search_settings import Search
from pipeline.sweep.search_study import ANOTHER, finished, open_study, study_file
from pipeline.sweep.search_trials import Trials
from pipeline.sweep.session import MakeExecutor, Session, edited_meanwhile, write
from pipeline.sweep.space import Space, as_text, size
from pipeline.tracking.tracker import left_behind

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.runs.run import Run


def run_search(composer: Composer, search: Search, fixed: Sequence[str], space: Space, executor: MakeExecutor) -> int:
    """Run trials until the study has as many as asked for. Returns the exit status."""
    from pipeline.cli.terminal import messages

    cells = Cells(composer, fixed)
    first = cells.first(space).runnable
    if first.sweep.dry_run:
        raise UserError("sweep.dry_run=true: a search decides its next cell when others have ended; nothing to list")
    if first.sweep.best is not None:
        raise UserError(f"sweep.best={first.sweep.best}: of a grid's table; a search is given hydra.sweeper.metric")
    search = search.decided(first)
    check_comparable(space, search)
    cells.check_ends(space)
    choices = cells.of_choices(space)
    epochs = epochs_of(first, search)
    if search.pruner != "none":
        check_every_epoch(search.metrics[0], search.pruner, first)
    folder = Path(first.settings.output_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    history = History(folder)
    texts = {key: as_text(distribution) for key, distribution in space.items()}
    asked = Asked(search.metrics, search.directions, texts, choices)
    name, lock, notes = claim(folder, search, asked, history)
    console = messages()
    composer.say_latest(console)
    for note in notes:
        say(console, note)
    with lock:
        study = open_study(study_file(folder, name), name, search, epochs, space)
        retry = "all" if first.sweep.retry == "all" else "failed"
        claims = Claims(folder)
        if claims.problem is not None:
            say(console, claims.said())
        trials = Trials(study, search, cells, space, history, claims, retry, partial(say, console))
        trials.ask_again()
        return _go_on(trials, first, texts, executor, console)


def _go_on(
    trials: Trials, first: Experiment, texts: Mapping[str, str], executor: MakeExecutor, console: Console
) -> int:
    """Run what the study lacks, and show what it has found. Returns the exit status."""
    from pipeline.cli.terminal import results

    study, search = trials.study, trials.search
    todo = _todo(trials, console)
    outcomes: list[Outcome] = []
    if todo > 0:
        outcomes = _run(trials, first, texts, executor, console, todo)
    elif lacking := left_behind(search_report.runs_of(study, Path(first.settings.output_dir))):
        say(console, lacking)  # the next run sends it, and this is none
    _say_edited(trials, outcomes, console)
    search_report.show(results(), study, search)
    for note in _notes(trials, first, outcomes):
        say(console, note)
    if search.pruner != "none" and trials.ran:
        say(console, search_report.saved_by_pruning(study, epochs_of(first, search), trials.ran))
    return 1 if any(not outcome.done for outcome in outcomes) else 0


def _todo(trials: Trials, console: Console) -> int:
    """How many trials the study lacks; says what it has."""
    study, search = trials.study, trials.search
    before = finished(study)
    done = f", {before} of them done before" if before else ""
    if before and trials.retry == "all":
        say(console, f"sweep.retry=all: the trials of {study.study_name} that have finished stay; {ANOTHER}")
    say(console, f"study {study.study_name}: {search.trials} trials{done}")
    todo, left = search.trials - before, trials.left
    if left is None or left >= todo:
        return todo
    whole = size(trials.space)
    say(console, f"the space has {whole:,} points, {before:,} of them tried: the search ends when all are")
    return left


def _run(
    trials: Trials,
    first: Experiment,
    texts: Mapping[str, str],
    executor: MakeExecutor,
    console: Console,
    todo: int,
) -> list[Outcome]:
    """So many trials as one session, whose run keeps the table, the result and the figure of what there is so far."""
    study, search, fixed = trials.study, trials.search, trials.cells.fixed
    about = {
        "search": {name: str(value) for name, value in vars(search).items()},
        "fixed": list(fixed),
        "space": dict(texts),
    }

    def keep(run: Run, ended: Sequence[Outcome]) -> None:
        summary.write_csv(run.artifact("trials.csv"), entries_of([], ended))
        found, tables = search_report.best(study, search), search_report.best_trials(study, search)
        result = Result(found, tables=tables, notes=_notes(trials, first, ended), title=run.journal.status.name)
        write(run, result, lambda: search_report.draw(run.artifact("trials.png"), study, search))

    name = trials.cells.composer.config(fixed).get("name")
    session = Session(str(name or study.study_name), first, about, console)
    return session.run(trials, executor, [], todo, keep)


def _notes(trials: Trials, first: Experiment, ended: Sequence[Outcome]) -> tuple[str, ...]:
    """Below the table: of the search, and of what its runs have noted."""
    study, search, folder = trials.study, trials.search, trials.history.root
    every = search_report.entries(study, ended, folder, first)
    return (*search_report.notes(study, search, folder), *below_table(every, search.metrics))


def _say_edited(trials: Trials, outcomes: Sequence[Outcome], console: Console) -> None:
    """That code was edited meanwhile: of the cells, and of what they import by computed names."""
    study = trials.study
    if said := edited_meanwhile(outcomes, trials.planned):
        say(console, f"{said}; {ANOTHER}")
    if beside := edited(study.user_attrs.get(IMPORTED, {})):
        which = f"not every trial of {study.study_name} ran the same"
        say(console, f"{', '.join(beside)} was edited while the trials ran: {which}; {ANOTHER}")
