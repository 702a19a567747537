"""What a sweep found: a table over the grid, the same as a file, and a figure."""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

from rich.console import Console

from pipeline.experiment.settings import Sweep
from pipeline.report.csv_file import csv_file
from pipeline.report.table import figure_of, file_heads, median_and_range, show_table
from pipeline.report.table import show as show_rows
from pipeline.runs import listing
from pipeline.runs.better import ENDS, better_of
from pipeline.runs.judged_on import GIVEN_OTHERWISE, examples_of, says_which
from pipeline.runs.result import Kind, Metric, Table, by_name, judged_by, read_result
from pipeline.spec import group_of
from pipeline.sweep import texts
from pipeline.sweep.ledger import headlines, undeclared
from pipeline.sweep.plan import Cell, Decision
from pipeline.sweep.schedule import Outcome

MOST_COLUMNS = 6  # of values of the last key; more than that go down the page
Position = tuple[tuple[str, ...], str]  # the values down the page, the value across it
VALIDATION = "validation/"
TITLE_WIDTH = 80  # characters of a line above a figure
MOST_METRICS = 4  # beside each other, where none of them says what is better
BETTER = "sweep.direction=maximize or sweep.direction=minimize"
# What says which data are tested, where no receipt does: cells that differ in it are not compared. A number says how
# many are trained on; of the share that holds the judging examples out, a number says which these are, too.
DATA = (*listing.DATA, "dataset.train", "dataset.test")
NUMBER = re.compile(r"[\d.e+-]+")
END = ("state", "reason", "run", "seconds")  # columns of the file: how a cell ended
REPEATS = "seed"  # cells that differ in it alone are repetitions: shown as a median and a range


@dataclass(frozen=True)
class Entry:
    """One cell at the end: `state` as the table says it; `metrics` where there is a result."""

    cell: Cell
    state: str
    reason: str
    run: Path | None
    metrics: dict[str, Metric]
    seconds: float | None


def entries(decisions: Sequence[Decision], outcomes: Sequence[Outcome]) -> list[Entry]:
    """Every cell of the sweep, in its order."""
    ran = {outcome.cell.number: outcome for outcome in outcomes}
    found = []
    for decision in decisions:
        outcome = ran.pop(decision.cell.number, None)
        if outcome is not None:
            found.append(_entry(outcome))
        elif decision.verdict == "run":
            found.append(Entry(decision.cell, "not run", "", None, {}, None))
        else:
            metrics = measured(decision.run) if decision.verdict == "done" else {}
            found.append(Entry(decision.cell, decision.verdict, decision.reason, decision.run, metrics, None))
    return [*found, *(_entry(outcome) for outcome in ran.values())]


def _entry(outcome: Outcome) -> Entry:
    state = "done" if outcome.state == "FINISHED" else outcome.state.lower()
    metrics = measured(outcome.run) if outcome.done else {}
    return Entry(outcome.cell, state, outcome.reason, outcome.run, metrics, outcome.seconds)


def measured(run: Path | None) -> dict[str, Metric]:
    """What a finished run measured: its result, and the metrics of the validation data after its last epoch."""
    result = read_result(run) if run else None
    if result is None:
        return {}
    found = by_name(result.metrics)
    last = [one for one in result.last_epoch if one.name.startswith(VALIDATION) and one.name not in found]
    return by_name([*result.metrics, *last])


class Pivot:
    """Cells by their swept keys: the last key's values become columns where they are few.

    `name` is the metric that is shown, `judge` the one that the best is chosen by: that of `by`, else that of
    the validation data where every result has it, so that the test data choose nothing. `beside`: where no key goes
    across, what the machine took for it, the first metric of kind `time` that every result has. Cells that declare
    nothing of their metrics have those side by side.
    """

    def __init__(self, found: Sequence[Entry], by: Sweep | None = None) -> None:
        self.by = by or Sweep()
        self.makes = any(texts.made(entry.cell) for entry in found)
        first = next((entry.metrics for entry in found if entry.metrics), {})
        names = headlines(next((entry.cell for entry in found if entry.cell.experiment), found[0].cell))
        self.losses_differ = any(group_of(key) == "loss" for key in found[0].cell.swept)
        comparable = {name: one for name, one in first.items() if not (self.losses_differ and name.endswith("/loss"))}
        self.name = judged_by(comparable, *names)
        self.known = list(dict.fromkeys(name for entry in found for name in undeclared(entry.metrics)))
        self.chosen = any(self.by.best in entry.metrics for entry in found)
        if self.chosen:
            self.name = str(self.by.best)
        self.several = bool(self.known) and not any(self.name in entry.metrics for entry in found)
        self.name = self.known[0] if self.several else self.name
        validation = self.name if self.chosen else self.name.replace("test/", VALIDATION, 1)
        results = [entry.metrics for entry in found if self.name in entry.metrics]
        self.judge = validation if all(validation in metrics for metrics in results) else self.name
        self.declared = results[0] if results else {}
        self.seeds_alone = list(found[0].cell.swept) == [REPEATS]
        keys = [key for key in found[0].cell.swept if key != REPEATS]
        across = keys[-1] if len(keys) > 1 and not self.several else None
        if across and len(_values(found, across)) > MOST_COLUMNS:
            across = None
        self.across = across
        self.down = [key for key in keys if key != across] or list(found[0].cell.swept)[:1]
        self.columns = _values(found, across) if across else [""]
        timed = (one.name for one in self.declared.values() if one.kind == "time" and one.name != self.name)
        everywhere = [name for name in timed if all(name in metrics for metrics in results)]
        beside = self.known[1:MOST_METRICS] if self.several else everywhere[:1]
        self.beside = () if across else tuple(beside)
        self.title = "metrics" if self.several and self.beside else self.named(self.name)
        self.positions: dict[Position, list[Entry]] = {}
        for entry in found:
            self.positions.setdefault(self._position(entry.cell), []).append(entry)
        self.rows = list(dict.fromkeys(row for row, _ in self.positions))
        self.judged_on = {position: self._data(position) for position in self.positions}

    def at(self, row: tuple[str, ...], column: str) -> list[Entry]:
        """The repetitions in one cell of the table."""
        return self.positions.get((row, column), [])

    def value(self, row: tuple[str, ...], column: str, name: str | None = None) -> list[float]:
        """The main metric (or another) of each repetition that has one."""
        name = name or self.name
        return [entry.metrics[name].value for entry in self.at(row, column) if name in entry.metrics]

    def best(self) -> set[Position]:
        """Where the best median of the judging metric on the same data stands, several positions where they are equal.

        No seed is best, nor any value of a metric of which neither more nor less is better. A position of which a
        repetition has failed is left out: the median of those that went well would flatter.
        """
        better = self.better()
        if self.seeds_alone or better == "none":
            return set()
        medians: dict[tuple[str, ...], dict[Position, float]] = {}
        for position in ((row, column) for row in self.rows for column in self.columns if self.value(row, column)):
            if position in self.partly_lost:
                continue
            median = statistics.median(self.value(*position, self.judge))
            if math.isnan(median):  # of a metric of the user's: neither more nor less than anything
                continue
            medians.setdefault(self.judged_on[position], {})[position] = median
        choose = max if better == "max" else min
        several = [found for found in medians.values() if len(found) > 1]
        return {where for found in several for where, median in found.items() if median == choose(found.values())}

    @cached_property
    def partly_lost(self) -> set[Position]:
        """Where some repetitions have a value and others came to none."""
        found = {where: [self.judge in entry.metrics for entry in entries] for where, entries in self.positions.items()}
        return {where for where, have in found.items() if any(have) and not all(have)}

    def _data(self, position: Position) -> tuple[str, ...]:
        """Which data the cells of a position are judged by, of those that the grid goes over, if the user compares
        none: by the receipts, of the seed that all positions have, else by the settings."""
        swept = self.at(*position)[0].cell.swept
        if self.chosen:
            return ()
        by_receipt = self._examples.get(position)
        if by_receipt is not None and not any(key in GIVEN_OTHERWISE for key in swept):
            return (by_receipt,)  # whatever is swept: a recipe or a saved run may name the data, too
        if not says_which(swept):
            return ()
        named = tuple(swept[key] for key in DATA if key in swept and not NUMBER.fullmatch(swept[key]))
        held_out = ("dataset.test", "dataset.validation") if self.judge.startswith(VALIDATION) else ("dataset.test",)
        return named + tuple(f"{key}={swept[key]}" for key in held_out if key in swept)

    @cached_property
    def _examples(self) -> dict[Position, str]:
        """Of each position that has a value what tells its judging examples apart; nothing where one does not say it.

        Other seeds have other examples for validation, so that all are of one seed.
        """
        by_seed = {
            position: {entry.cell.swept.get(REPEATS, ""): entry for entry in entries if self.judge in entry.metrics}
            for position, entries in self.positions.items()
        }
        having = {position: entries for position, entries in by_seed.items() if entries}
        first = next(iter(having.values()), {})
        seed = next((seed for seed in first if all(seed in entries for entries in having.values())), None)
        if seed is None:
            return {}
        found = {position: examples_of(entries[seed].run, self.judge) for position, entries in having.items()}
        known = {position: examples for position, examples in found.items() if examples is not None}
        return known if len(known) == len(found) else {}

    @property
    def by_dataset(self) -> bool:
        """Whether the grid goes over data, on each of which another is the best."""
        return len({on for position, on in self.judged_on.items() if self.value(*position, self.judge)}) > 1

    def better(self) -> str:
        """`min`, `max` or `none`: what is better of the judging metric. Different losses are not compared."""
        if self.by_different_losses or (self.makes and not self.chosen):
            return "none"
        declared = self.declared[self.judge].direction if self.declared else "none"
        return better_of(declared, self.by.direction if self.chosen else None)

    @property
    def by_different_losses(self) -> bool:
        """Whether the judging metric is a loss, and cells have different ones."""
        return self.losses_differ and not self.chosen and self.judge.endswith("/loss")

    def kind(self, name: str) -> str:
        """The kind that a metric was declared with."""
        return self.declared[name].kind if name in self.declared else "result"

    def named(self, name: str) -> str:
        """A metric's name with its unit."""
        unit = self.declared[name].unit if name in self.declared else ""
        return f"{name} ({unit})" if unit else name

    def _position(self, cell: Cell) -> Position:
        return tuple(cell.swept.get(key, "") for key in self.down), cell.swept[self.across] if self.across else ""


def table(found: Sequence[Entry], by: Sweep | None = None) -> Table:
    """The table over the grid, its best position marked; seeds alone end in their median."""
    pivot = Pivot(found, by)
    best = pivot.best()
    title = f"{pivot.title} over the grid" + (f", columns: {pivot.across}" if pivot.across else "")
    heads = [column or pivot.named(pivot.name) for column in pivot.columns]
    heads += map(pivot.named, pivot.beside)
    rows = [(*row, *_cells(pivot, row, best)) for row in pivot.rows]
    if pivot.seeds_alone and len(rows) > 1:
        names = (pivot.name, *pivot.beside)
        each = {name: [value for row in pivot.rows for value in pivot.value(row, "", name)] for name in names}
        spreads = (median_and_range(values, pivot.kind(name)) if values else "" for name, values in each.items())
        rows += [("median", *spreads)] if len(each[pivot.name]) > 1 else []
    return Table(title, (*pivot.down, *heads), tuple(rows))


def notes(found: Sequence[Entry], by: Sweep | None = None) -> tuple[str, ...]:
    """What the best was chosen by, or what is missing so that one can be chosen."""
    pivot = Pivot(found, by)
    sought, declared = pivot.by.direction, pivot.declared.get(pivot.judge)
    lines = []
    if pivot.by.best is not None and pivot.known and not pivot.chosen:
        lines.append(f"sweep.best={pivot.by.best}: no cell has it; choose from {', '.join(pivot.known)}")
    elif pivot.chosen and pivot.better() == "none":
        lines.append(
            f"sweep.best={pivot.by.best}: declares no direction; {BETTER.replace('or sweep.direction=', 'or ')}"
        )
    elif pivot.chosen and sought and declared and ENDS.get(declared.direction, ("", sought))[1] != sought:
        more = ENDS[declared.direction][0]
        lines.append(f"sweep.direction={sought} was not followed: {pivot.judge} declares that {more} is better")
    elif pivot.by_different_losses and declared:
        lines.append(f"{pivot.judge} is of another loss in each cell: sweep.best=<metric> with {BETTER} marks the best")
    elif declared and pivot.better() == "none" and declared.kind == "result" and not pivot.seeds_alone:
        none = "no metric here declares" if pivot.several else f"{pivot.judge} does not declare"
        lines.append(f"{none} whether more or less is better; sweep.best=<metric> with {BETTER} marks the best")
    if pivot.by_dataset and not pivot.best() and not lines:
        lines.append(f"no two cells on the same data: none is marked; sweep.best={pivot.judge} compares all of them")
    best = pivot.best()
    if pivot.partly_lost and pivot.better() != "none" and not pivot.seeds_alone:
        lost = f"{len(pivot.partly_lost)} of {len(pivot.positions)} places"
        lines.append(f"{lost} lack the result of a repetition, and are not marked")
    return (*lines, *([f"* {_best_by(pivot)}"] if best else []))


def show(console: Console, found: Sequence[Entry], by: Sweep | None = None) -> None:
    """Print the table over the grid and what its best position is the best by, then the texts that cells have made."""
    show_table(console, table(found, by))
    for text in notes(found, by):
        console.print(text, style="dim", highlight=False, markup=False)
    whole = texts.of_cells((entry.cell, entry.run) for entry in found)
    short = texts.shortened(whole)
    if whole:
        show_rows(console, "text of each cell", short)
    if short != whole:
        console.print("some are cut: the result of each run has all of it", style="dim", highlight=False)


def _best_by(pivot: Pivot) -> str:
    """What the best was chosen by."""
    judge, marked = pivot.judge, pivot.best()
    best = "the best on the same data" if pivot.by_dataset else "the best"
    if len(marked) > len({pivot.judged_on[position] for position in marked}):
        best += ", several being equal,"
    if judge.startswith(VALIDATION):
        return f"{best} by {judge} of the weights that were kept"
    if not judge.startswith("test"):
        return f"{best} by {judge}"
    why = "" if pivot.chosen else ": not every result has it of the validation data"
    return f"{best} by {judge}, so chosen on the test data{why}"


def _cells(pivot: Pivot, row: tuple[str, ...], best: set[Position]) -> list[str]:
    cells = [_text(pivot, row, column) + " *" * ((row, column) in best) for column in pivot.columns]
    return [*cells, *(_text(pivot, row, "", name) for name in pivot.beside)]


def _text(pivot: Pivot, row: tuple[str, ...], column: str, name: str | None = None) -> str:
    values, found = pivot.value(row, column, name), pivot.at(row, column)
    if not values:
        return found[0].state if found and name is None else ""
    kind = pivot.kind(name or pivot.name)
    return median_and_range(values, kind) if len(found) > 1 else figure_of(values[0], kind)


def write_csv(path: Path, found: Sequence[Entry]) -> None:
    """A row for each cell: what was swept, how it ended, every metric, those of a kind together.

    A swept key or a metric that has the name of another column has its kind before it.
    """
    keys = list(dict.fromkeys(key for entry in found for key in entry.cell.swept))
    declared = {name: metric for entry in found for name, metric in entry.metrics.items()}
    names = sorted(declared, key=lambda name: get_args(Kind).index(declared[name].kind))
    named = file_heads(("cell", *END), [*((key, "setting") for key in keys), *((name, "metric") for name in names)])
    with csv_file(path) as writer:
        writer.writerow(["cell", *named[: len(keys)], *END, *named[len(keys) :]])
        for entry in found:
            swept = [entry.cell.swept.get(key, "") for key in keys]
            took = "" if entry.seconds is None else f"{entry.seconds:.3f}"
            run = entry.run.name if entry.run else ""
            values = [repr(entry.metrics[name].value) if name in entry.metrics else "" for name in names]
            writer.writerow([entry.cell.number + 1, *swept, entry.state, entry.reason, run, took, *values])


def draw(path: Path, found: Sequence[Entry], title: str, by: Sweep | None = None) -> bool:
    """A dot for each result, rows as in the table, a colour a column. False where there is nothing to compare.

    A cell without a number is a word behind its row: failed.
    """
    pivot = Pivot(found, by)
    if sum(bool(pivot.value(row, column)) for row in pivot.rows for column in pivot.columns) < 2:
        return False
    from pipeline.report import grid_figure

    labels = [" ".join(row) for row in pivot.rows]
    series = {column: [pivot.value(row, column) for row in pivot.rows] for column in pivot.columns}
    keys = ", ".join((*pivot.down, pivot.across) if pivot.across else pivot.down)
    grid_figure.dots(
        path, labels, series,
        axis=pivot.named(pivot.name), rows=", ".join(pivot.down), legend=pivot.across or "",
        title=f"{textwrap.fill(f'{pivot.name} over {keys}', TITLE_WIDTH)}\n{title}",
        remarks=[_numberless(pivot, row) for row in pivot.rows],
    )  # fmt: skip
    return True


def _numberless(pivot: Pivot, row: tuple[str, ...]) -> str:
    """What the table has of a row's cells that no dot stands for: `failed`, or `16: failed` of one among others."""
    words = {column: _text(pivot, row, column) for column in pivot.columns if not _finite(pivot.value(row, column))}
    if len(words) == len(pivot.columns) and len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{column}: {word}" for column, word in words.items() if word)


def _finite(values: Sequence[float]) -> bool:
    """Whether there is a number to draw."""
    return any(map(math.isfinite, values))


def _values(found: Sequence[Entry], key: str) -> list[str]:
    return list(dict.fromkeys(entry.cell.swept.get(key, "") for entry in found))
