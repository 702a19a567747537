"""Cells below a stage's run: trainings, each a separate run in its own process, one at a time.

For a stage that compares trainings (a ladder, precisions):

    cells = checked([variant(experiment, {"precision": name}, f"precision={name}") for name in names])
    entries = run_cells(run, cells)
    return Result(..., failed=without_result(entries))

They are timed, so nothing else runs beside one, and one that has run before runs again.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.contracts import Stage
from pipeline.errors import Impossible, UserError
from pipeline.experiment import NOT_DECIDING
from pipeline.experiment.settings import Sweep
from pipeline.machine.others import Others, said_of
from pipeline.spec import group_of
from pipeline.sweep import summary
from pipeline.sweep.entries import entries_of
from pipeline.sweep.notes import ended_early, notes_of, of_times, shares_of_others
from pipeline.sweep.plan import Decision, cell_name, check, nothing_runs

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run
    from pipeline.sweep.entries import Entry
    from pipeline.sweep.schedule import Outcome

AGAIN = "runs all cells again, resuming those that left a checkpoint"
FILE = "tables/cells.csv"  # an artifact of the stage's run: a row for each cell


@dataclass(frozen=True)
class Variant:
    """A cell to be: in what it differs from the others (`precision` -> `fp32`), its config, and the keys set in it."""

    swept: Mapping[str, str]
    config: dict[str, Any]
    keys: list[str]


def variant(
    experiment: Experiment,
    swept: Mapping[str, str],
    *overrides: str,
    above: Variant | None = None,
    stage: type[Stage] | None = None,
    called: str | None = None,
) -> Variant:
    """The run that the experiment becomes by overrides as on the command line, several in one text.

    A later text goes over what the earlier ones have left. `above`: the variant whose config they are laid over instead
    of the experiment's. `stage`: the run's (None: stage=train). `called`: which training of the same it is, `fold-0`.
    Raises UserError for what the command line would refuse.
    """
    from pipeline.stages.train import Train
    from pipeline.sweep.compose import overridden

    refuse_profiler(experiment, "profile a single training instead")
    stage = stage or Train
    target = f"{stage.__module__}.{stage.__qualname__}"
    config = above.config if above else {**experiment.config, "stage": {"_target_": target}}
    config, keys = {**config, "name": _name(experiment, swept, called)}, list(above.keys) if above else []
    for text in overrides:
        config, found = overridden(config, _words(text))
        keys += found
    for key in keys:
        if group_of(key) in ("stage", *NOT_DECIDING):
            raise UserError(f"{key}: this key is shared by the stage and all of its cells; set it for the stage")
    return Variant(swept, config, keys)


def refuse_profiler(experiment: Experiment, instead: str) -> None:
    """Refuse a profiler, whose cost would be in the times of the cells. `instead`: what to do. Raises UserError."""
    if experiment.profiler.active:
        name, own = type(experiment.profiler).__name__.lower(), type(experiment.stage).__name__.lower()
        raise UserError(f"profiler={name} with stage={own}: this stage compares times; {instead}")


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{text}: not overrides as on the command line ({error})") from error


def refuse_overruled(keys: Sequence[str], set_anew: Sequence[str], where: str) -> None:
    """Refuse keys of the user's of which nothing is left, since every cell sets them anew. Raises UserError."""
    for key in keys:
        if key in set_anew or group_of(key) in set_anew:
            raise UserError(f"{key}: set for every cell by {where}; set it there")


def set_by_all(variants: Sequence[Variant]) -> list[str]:
    """The keys that each of the variants sets."""
    return [key for key in variants[0].keys if all(key in one.keys for one in variants)]


def checked(variants: Sequence[Variant]) -> list[Decision]:
    """Which of the variants run here, and why the others cannot. Raises UserError for a mistake, or if none can run."""
    return if_any([decided(number, one) for number, one in enumerate(variants)])


def rehearse(variants: Sequence[Variant]) -> None:
    """Refuse once what the data show to be wrong with every cell: by the first one. Imports no framework, which its
    cells do in their own processes. Raises UserError."""
    from pipeline.stages.data_checks import rehearse_data

    for experiment in experiments_of(variants[:1]):
        rehearse_data(experiment, experiment.stage.task)


def decided(number: int, one: Variant) -> Decision:
    """Whether one variant runs here, and if not, why. Raises UserError for a mistake."""
    cell = check(number, one.swept, one.config, one.keys)
    return Decision(cell, "skipped" if cell.impossible else "run", cell.impossible or "new")


def if_any(decisions: list[Decision]) -> list[Decision]:
    """The same, where at least one cell runs. Raises UserError."""
    if all(decision.verdict == "skipped" for decision in decisions):
        raise nothing_runs([decision.reason for decision in decisions])
    return decisions


def experiments_of(variants: Sequence[Variant]) -> list[Experiment]:
    """The experiments of the variants, also of those that this machine's devices cannot run.

    A stage's hash is made of them, and must be the same on a cluster's login node as on its nodes. Left out is what
    runs nowhere: choices that do not go together.
    """
    loaded = (experiment_of(one) for one in variants)
    return [one for one in loaded if one is not None]


def experiment_of(one: Variant) -> Experiment | None:
    """The variant's experiment, whether or not this machine's devices can run it; None for what runs nowhere."""
    from pipeline.ready import load_checked

    with contextlib.suppress(Impossible):
        return load_checked(one.config)
    return None


def run_cells(run: Run, decisions: Sequence[Decision]) -> list[Entry]:
    """Run the cells below the open run, and return how each ended, in order. Raises Stopped with the cells stopped."""
    from pipeline.runs import dynamic_imports
    from pipeline.sweep.schedule import Listed
    from pipeline.sweep.session import run_below
    from pipeline.sweep.workers import Workers

    def keep(run: Run, outcomes: Sequence[Outcome]) -> None:
        summary.write_csv(run.artifact(FILE), entries_of(decisions, outcomes))

    for decision in decisions:
        if decision.verdict == "skipped":
            run.note(f"impossible here: {decision.cell.label}: {decision.reason}")
    todo = [decision.cell for decision in decisions if decision.verdict == "run"]
    settings, others = Sweep(jobs=1, stop_after=0), Others()
    outcomes, _ = run_below(run, settings, Listed(todo), Workers, decisions, len(todo), keep, again=AGAIN)
    if beside := dynamic_imports.edited(dynamic_imports.imported_by(one.run for one in outcomes)):
        run.note(
            f"{', '.join(beside)} was edited while the cells ran: not all ran the same code; give the command again"
        )
    entries = entries_of(decisions, outcomes)
    for note in notes_of(entries):
        run.note(note)
    shares = shares_of_others(entries)
    if (of_others := said_of(others.share())) and None in shares and not any(map(said_of, shares)):
        run.note(f"{of_others} while the cells ran, which slowed them")
    return entries


def caveats(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Notes: what makes times, or tests, of cells less comparable than the same settings would."""
    return (*of_times(entries), *ended_early(entries))


def of_data(receipts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By what the receipt of several cells knows the data: the first seed's, which tells whether they have changed
    since, and what all hold out alike; a dataset may draw by the seed. `receipts`: the cells', the first seed first."""
    first, *others = [receipt["held_out"] for receipt in receipts]
    held_out = {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}
    return {"data_sha256": receipts[0]["data_sha256"], "held_out": held_out}


def of_tests(receipts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note where the seeds' tests hold different examples."""
    if len({receipt["held_out"].get("test") for receipt in receipts}) == 1:
        return []
    return ["the seeds were tested on different examples: the interval is of these, too"]


def without_result(entries: Sequence[Entry]) -> str | None:
    """The cells that should have run and came to nothing, in words for `Result.failed`; None where there are none."""
    lost = [entry for entry in entries if entry.state not in ("done", "skipped")]
    if not lost:
        return None
    labels = ", ".join(entry.cell.label for entry in lost)
    return f"{len(lost)} of {len(entries)} cells have no result: {labels}{first_cause(lost)}"


def first_cause(entries: Sequence[Entry]) -> str:
    """Why the first of the cells has none, to stand behind a message; nothing where none says why."""
    causes = [entry for entry in entries if entry.reason]
    return f"; {causes[0].cell.label}: {causes[0].reason}" if causes else ""


def _name(experiment: Experiment, swept: Mapping[str, str], called: str | None) -> str:
    """A cell's run is called as the stage is, and by what sets it apart; one of several trainings of the same, whose
    figures are titled so, by which it is and what is trained."""
    stage = type(experiment.stage).__name__.lower()
    if called is not None and not experiment.settings.name:
        return cell_name(called, {"": experiment.name.removeprefix(f"{stage}-")})
    return cell_name(experiment.settings.name or stage, swept)
