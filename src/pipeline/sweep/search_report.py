"""What a search found: its best trials, its figure, and what pruning saved."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.streams import say
from pipeline.report.table import figure, show_table
from pipeline.runs.judged_on import GIVEN_OTHERWISE, examples_of
from pipeline.runs.result import Direction, Metric, Table
from pipeline.sweep.entries import Entry, entries_of, measured
from pipeline.sweep.plan import Cell, varied_by
from pipeline.sweep.search_study import ranking
from pipeline.sweep.space import as_overrides

if TYPE_CHECKING:
    from optuna.study import Study
    from rich.console import Console

    from pipeline.experiment import Experiment
    from pipeline.sweep.schedule import Outcome
    from pipeline.sweep.search_settings import Search

MOST = 10  # trials in the table of the best


def show(console: Console, study: Study, search: Search) -> None:
    """Print the best trials."""
    if tables := best_trials(study, search):
        show_table(console, tables[0])
    else:
        say(console, "no trial has finished")


def best_trials(study: Study, search: Search) -> tuple[Table, ...]:
    """A table of the best trials; none where no trial has finished."""
    ranked = ranking(study)
    if not ranked:
        return ()
    many = len(search.metrics) > 1
    title = "trials that no other beats in every metric" if many else f"the best of {len(ranked)} finished trials"
    points = len({tuple(sorted(trial.params.items())) for trial in ranked})
    title += f", which are {points} points" if points < len(ranked) else ""
    shown = study.best_trials if many else ranked[:MOST]
    keys = list(dict.fromkeys(key for trial in shown for key in trial.params))
    rows = []
    for trial in shown:
        values = [figure(value) for value in trial.values or ()]
        rows.append((str(counted(trial.number)), *values, *(_short(trial.params.get(key, "")) for key in keys)))
    return (Table(title, ("trial", *search.metrics, *(key.lstrip("+") for key in keys)), tuple(rows)),)


def notes(study: Study, search: Search, folder: Path) -> list[str]:
    """What makes the trials, whose runs lie in `folder`, less than a ranking of them says."""
    runs = {trial.number: folder / name for trial in ranking(study) if (name := _run_of(study, trial.number))}
    gone = [str(counted(number)) for number, run in sorted(runs.items()) if not run.is_dir()]
    found = []
    if runs and (tested := [name for name in search.metrics if name.startswith("test/")]):
        found.append(f"the trials are ranked by {', '.join(tested)}, so chosen on the test data")
    if gone:
        found.append(f"trial {', '.join(gone)}: the run was deleted, and the study alone has its value")
    other = [str(counted(number)) for number in sorted(runs) if study.user_attrs.get(f"other data {number}")]
    if other:
        found.append(f"trial {', '.join(other)}: the data had changed since the trials before")
    examples = {examples_of(run, name) for run in runs.values() for name in search.metrics[:1]} - {None}
    searched = {key.lstrip("+") for trial in study.get_trials(deepcopy=False) for key in trial.params}
    if len(examples) > 1 and searched.isdisjoint(GIVEN_OTHERWISE):
        found.append(
            f"{search.metrics[0]} is of {len(examples)} different sets of examples: the trials cannot be compared by it"
        )
    return found


def entries(study: Study, outcomes: Sequence[Outcome], folder: Path, first: Experiment) -> list[Entry]:
    """The trials of the whole study: those that finished in earlier commands, then the `outcomes` of this one.

    `first`: a trial's experiment, with which the others have in common what is not searched.
    """
    here = {outcome.cell.number for outcome in outcomes}
    before = []
    for trial in ranking(study):
        name = _run_of(study, trial.number)
        if name is not None and trial.number not in here:
            cell = Cell(trial.number, varied_by(as_overrides(trial.params)), {}, [], first, None)
            before.append(Entry(cell, "done", "", folder / name, measured(folder / name), None))
    return [*before, *entries_of([], outcomes)]


def runs_of(study: Study, folder: Path) -> list[Path]:
    """The runs of the trials, those that were cut short too, which are there still."""
    names = [_run_of(study, trial.number) for trial in study.get_trials(deepcopy=False)]
    return [folder / name for name in names if name is not None and (folder / name).is_dir()]


def _run_of(study: Study, number: int) -> str | None:
    name = study.user_attrs.get(f"run {number}")
    return None if name is None else str(name)


def best(study: Study, search: Search) -> tuple[Metric, ...]:
    """The best value of each metric, in the direction that the search was given."""
    ranked = ranking(study)
    choose: dict[str, tuple[Callable[..., float], Direction]] = {"maximize": (max, "max"), "minimize": (min, "min")}
    found = []
    for index, (name, wanted) in enumerate(zip(search.metrics, search.directions, strict=True)):
        chosen, direction = choose[wanted]
        if ranked:
            value = chosen((trial.values or [0.0])[index] for trial in ranked)
            found.append(Metric(f"best/{name}", value, direction=direction))
    return tuple(found)


def saved_by_pruning(study: Study, epochs: int, ran: Collection[int]) -> str:
    """How many epochs were trained, and how many pruning left out, of the trials that `ran` in this command.

    `epochs` is the most that a trial has: one that stopped early by itself saved nothing by pruning.
    """
    from optuna.trial import TrialState

    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    last = {one.number: max(one.intermediate_values, default=0) for one in ended if one.number in ran}
    pruned = [last[one.number] for one in ended if one.number in ran and one.state == TrialState.PRUNED]
    text = f"pruning: {len(pruned)} of {len(last)} trials cut short"
    text += f" (the median after epoch {statistics.median(pruned):g})" if pruned else ""
    trained, saved = sum(last.values()), sum(epochs - epoch for epoch in pruned)
    whole = trained + saved
    return f"{text}; {trained} epochs trained, {saved} saved ({saved / whole:.0%})" if whole else text


def draw(path: Path, study: Study, search: Search) -> None:
    """Every finished trial's value as they came, and the best so far. One that was cut short has no last value."""
    from optuna.trial import TrialState

    from pipeline.report import grid_figure

    done = sorted(ranking(study), key=lambda trial: trial.number)
    points = [(counted(trial.number), trial.values[0]) for trial in done if trial.values]
    pruned = len(study.get_trials(deepcopy=False, states=(TrialState.PRUNED,)))
    title = f"{study.study_name}: {len(points)} finished trials; not drawn: {pruned} cut short"
    if points:
        better = max if search.directions[0] == "maximize" else min
        grid_figure.history(path, points, search.metrics[0], better, title if pruned else study.study_name)


def counted(number: int) -> int:
    """A trial as it is shown everywhere, from 1 on as cells are; Optuna numbers them from 0."""
    return number + 1


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
