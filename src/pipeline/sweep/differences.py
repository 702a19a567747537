"""Whether the places of a grid are worse than its best by more than chance: seed by seed, where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.contracts import Stage
from pipeline.experiment.settings import Sweep
from pipeline.report.csv_file import csv_file
from pipeline.report.intervals import CONFIDENCE, LEAST_RUNS, Paired, corrected, paired
from pipeline.report.table import file_heads
from pipeline.sweep.entries import Entry
from pipeline.sweep.pivot import Pivot, Position
from pipeline.sweep.plan import seeds_of

FILE = "differences.csv"
COLUMNS = ("metric", "seeds", "difference", "low", "high", "p")
LEVEL = 1 - CONFIDENCE
TESTS = f"paired t tests at {LEVEL:.0%}, Benjamini-Hochberg"
UNDECIDED = f"~ not shown to be worse than it: {TESTS}"
DECIDED = f"all other results are worse: {TESTS}"
BY_FOLD = "stage=compare stage.runs=[a,b] compares two with as many folds, fold by fold"
MAY_BE_CHANCE = "a small difference may be chance; seed=0,1,2 shows whether it is"


def from_best(pivot: Pivot, name: str | None = None) -> dict[Position, Paired]:
    """How far each place lies from the best on the same data, by the judging metric or another; only places that have
    enough seeds in common with it, of which none was lost."""
    marked = pivot.best()
    best_on = {pivot.judged_on[best]: best for best in sorted(marked, reverse=True)}
    found = {}
    for position, on in pivot.judged_on.items():
        if on not in best_on or position in marked or position in pivot.partly_lost:
            continue
        difference = paired(pivot.by_seed(position, name), pivot.by_seed(best_on[on], name))
        if difference is not None:
            found[position] = difference
    return found


def undecided(pivot: Pivot) -> set[Position]:
    """The places that are not shown to be worse than the best: one with a worse median may have the better mean."""
    worse, found = 1 if pivot.better() == "min" else -1, from_best(pivot)
    tested = zip(found.items(), corrected([*found.values()]), strict=True)
    return {position for (position, one), p in tested if not (p <= LEVEL and worse * one.mean > 0)}


def notes(pivot: Pivot) -> list[str]:
    """What is known of the differences from the best: nothing where none is marked."""
    marked, known = pivot.best(), from_best(pivot)
    if not marked:
        return []
    if undecided(pivot):
        return [UNDECIDED]
    with_value = {position for position in pivot.positions if pivot.value(*position, pivot.judge)}
    if known and with_value == {*marked, *known}:
        return [DECIDED]
    most = max(map(len, pivot.positions.values()))
    if most >= LEAST_RUNS or not _another_seed_decides(pivot):
        return []
    if most == 1 and all(pivot.folds_of(position) is not None for position in pivot.positions):
        return [f"each is a mean over folds: a small difference may be chance; {BY_FOLD}"]
    return [f"{'one seed' if most == 1 else f'at most {most} seeds'} each: {MAY_BE_CHANCE}"]


def _another_seed_decides(pivot: Pivot) -> bool:
    """Whether each place that could run is of trainings by one seed, which another seed would end otherwise."""
    entries = (entry for found in pivot.positions.values() for entry in found)
    experiments = [entry.cell.experiment for entry in entries if entry.cell.experiment is not None]
    alone = (seeds_of(one)[1] == 1 and one.stage.seeds_by is None and _trains(one.stage) for one in experiments)
    return pivot.kind(pivot.judge) in ("result", "memory") and bool(experiments) and all(alone)


def _trains(stage: Stage) -> bool:
    """Whether a seed decides what it trains: what times products or forms draws their operands by it, and no more."""
    return not stage.starts_from_run and (stage.reads is None or {"seed", "backend"} <= {*stage.reads})


def write_csv(path: Path, found: Sequence[Entry], by: Sweep | None = None) -> None:
    """A row for each place and metric (the judging one, and that of the table): its mean difference from the best, with
    the ends of its interval and its corrected p. No file where nothing can be compared."""
    pivot = Pivot(found, by)
    names = dict.fromkeys((pivot.judge, pivot.name))
    rows = []
    for name in names:
        differences = from_best(pivot, name)
        for (position, one), p in zip(differences.items(), corrected([*differences.values()]), strict=True):
            rows.append((*_settings(pivot, position), name, one.n, repr(one.mean), *_ends(one), repr(p)))
    if not rows:
        return
    keys = [*pivot.down, *([pivot.across] if pivot.across else [])]
    with csv_file(path) as writer:
        writer.writerow([*file_heads(COLUMNS, [(key, "setting") for key in keys]), *COLUMNS])
        writer.writerows(rows)


def _settings(pivot: Pivot, position: Position) -> list[str]:
    row, column = position
    return [*row, *([column] if pivot.across else [])]


def _ends(difference: Paired) -> tuple[str, str]:
    if difference.half is None:
        return "", ""
    return repr(difference.mean - difference.half), repr(difference.mean + difference.half)
