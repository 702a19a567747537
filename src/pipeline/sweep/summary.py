"""What a sweep found: a table over the grid, the same as a file, and a figure."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console

from pipeline.experiment.settings import Sweep
from pipeline.report.csv_file import csv_file
from pipeline.report.table import figure_of, file_heads, median_and_range, show_table
from pipeline.report.table import show as show_rows
from pipeline.runs.better import ENDS
from pipeline.runs.result import Kind, Table, judged_by
from pipeline.sweep import differences, texts
from pipeline.sweep.entries import VALIDATION, Entry
from pipeline.sweep.ledger import headlines
from pipeline.sweep.pivot import SIZES, Pivot, Position

TITLE_WIDTH = 80  # characters of a line above a figure
BETTER = "sweep.direction=maximize or sweep.direction=minimize"
END = ("state", "reason", "run", "seconds")  # columns of the file: how a cell ended


def table(found: Sequence[Entry], by: Sweep | None = None) -> Table:
    """The table over the grid: its best position is marked, and those not shown to be worse; seeds alone end in their
    median."""
    pivot = Pivot(found, by)
    marks = {**dict.fromkeys(differences.undecided(pivot), " ~"), **dict.fromkeys(pivot.best(), " *")}
    title = f"{pivot.title} over the grid" + (f", columns: {pivot.across}" if pivot.across else "")
    heads = [column or pivot.named(pivot.name) for column in pivot.columns]
    heads += map(pivot.named, pivot.beside)
    rows = [(*row, *_cells(pivot, row, marks)) for row in pivot.rows]
    if pivot.seeds_alone and len(rows) > 1:
        names = (pivot.name, *pivot.beside)
        each = {name: [value for row in pivot.rows for value in pivot.value(row, "", name)] for name in names}
        spreads = (median_and_range(values, pivot.kind(name)) if values else "" for name, values in each.items())
        rows += [("median", *spreads)] if len(each[pivot.name]) > 1 else []
    return Table(title, (*pivot.down, *heads), tuple(rows))


def shown(found: Sequence[Entry], by: Sweep | None = None) -> tuple[str, ...]:
    """The metrics in the table, and below it."""
    pivot = Pivot(found, by)
    return (pivot.name, *pivot.beside, *pivot.below)


def notes(found: Sequence[Entry], by: Sweep | None = None) -> tuple[str, ...]:
    """What the best was chosen by, or what is missing so that one can be chosen."""
    pivot = Pivot(found, by)
    best, missing = pivot.best(), _missing(pivot)
    lines = [] if missing is None else [missing]
    if pivot.by_dataset and not best and missing is None:
        lines.append(f"no two cells {pivot.alike}: none is marked; sweep.best={pivot.judge} compares all of them")
    if pivot.partly_lost and pivot.better() != "none" and not pivot.seeds_alone:
        lost = f"{len(pivot.partly_lost)} of {len(pivot.positions)} places"
        lines.append(f"{lost} lack the result of a repetition, and are not marked")
    without = sum(pivot.name not in entry.metrics for entry in found)
    if pivot.seeds_alone and 0 < without < len(found) - 1:
        lines.append(f"the median leaves out {without} of {len(found)} seeds, which came to no result")
    return (*lines, *([f"* {_best_by(pivot)}"] if best else []), *differences.notes(pivot), *_ends(pivot))


def _ends(pivot: Pivot) -> Iterator[str]:
    """Of each metric that has no room in the table its least and its most, medians of repetitions, and which cell has
    the better of them."""
    for name in pivot.below:
        values = {position: pivot.value(*position, name) for position in pivot.positions}
        medians = {position: statistics.median(each) for position, each in values.items() if each}
        choose = {"min": min, "max": max}.get(pivot.declared[name].direction)
        low, high = (figure_of(end, pivot.kind(name)) for end in (min(medians.values()), max(medians.values())))
        if low == high or choose is None or pivot.sizes_timed(name):
            yield f"{pivot.named(name)}: {low}{'' if low == high else f' to {high}'}"
            continue
        first, *others = [one for one, median in medians.items() if median == choose(medians.values())]
        where = f"{pivot.words(first)}{f' and {len(others)} more' if others else ''}"
        yield f"{pivot.named(name)}: {low} to {high}; the {'least' if choose is min else 'most'}: {where}"


def _missing(pivot: Pivot) -> str | None:
    """What is missing so that the best can be chosen as the user asks for it, or at all; None where nothing is."""
    sought, declared = pivot.by.direction, pivot.declared.get(pivot.judge)
    if pivot.by.best is not None and pivot.known and not pivot.chosen:
        return f"sweep.best={pivot.by.best}: no cell has it; choose from {', '.join(pivot.known)}"
    if sizes := pivot.sizes_timed(pivot.judge):
        return f"{pivot.judge} is not compared across {SIZES}={','.join(sizes)}; {_of_one_size(pivot)}"
    if pivot.chosen and pivot.better() == "none":
        return f"sweep.best={pivot.by.best}: declares no direction; {BETTER.replace('or sweep.direction=', 'or ')}"
    if declared is None:
        return None
    if pivot.chosen and sought and ENDS.get(declared.direction, ("", sought))[1] != sought:
        more = ENDS[declared.direction][0]
        return f"sweep.direction={sought} is ignored: {pivot.judge} declares that {more} is better"
    if pivot.by_different_losses:
        return f"{pivot.judge} is of another loss in each cell: sweep.best=<metric> with {BETTER} marks the best"
    if pivot.better() == "none" and declared.kind == "result" and not pivot.seeds_alone:
        none = "no metric here declares" if pivot.several else f"{pivot.judge} does not declare"
        return f"{none} whether more or less is better; sweep.best=<metric> with {BETTER} marks the best"
    return None


def _of_one_size(pivot: Pivot) -> str:
    """What to choose in place of a metric of the smallest size of each cell: that of a size which all have."""
    end = pivot.judge.partition("/")[2]
    every = [entry.metrics for found in pivot.positions.values() for entry in found if pivot.judge in entry.metrics]
    common = [name for name in pivot.declared if name.startswith("batch_") and name.endswith(f"/{end}")]
    common = [name for name in common if all(name in metrics for metrics in every)]
    return f"sweep.best={common[0]} compares a size that all have" if common else "give all cells a size in common"


def show(console: Console, found: Sequence[Entry], by: Sweep | None = None) -> None:
    """Print the table over the grid and what its best position is the best by, then the texts that cells have made."""
    show_table(console, table(found, by))
    for text in notes(found, by):
        console.print(text, style="dim", highlight=False, markup=False)
    whole = texts.of_cells(found)
    short = texts.shortened(whole)
    if whole:
        show_rows(console, "text of each cell", short)
    if short != whole:
        console.print("some are cut: the result of each run has all of it", style="dim", highlight=False)


def _best_by(pivot: Pivot) -> str:
    """What the best was chosen by."""
    judge, marked = pivot.judge, pivot.best()
    best = f"the best {pivot.alike}" if pivot.by_dataset else "the best"
    if len(marked) > len({pivot.judged_on[position] for position in marked}):
        best += ", several being equal,"
    if judge.startswith(VALIDATION):
        return f"{best} by {judge} of the weights that were kept"
    if not judge.startswith("test"):
        return f"{best} by {judge}"
    why = "" if pivot.chosen else ": not every result has it of the validation data"
    return f"{best} by {judge}, so chosen on the test data{why}"


def _cells(pivot: Pivot, row: tuple[str, ...], marks: Mapping[Position, str]) -> list[str]:
    cells = [_text(pivot, row, column) + marks.get((row, column), "") for column in pivot.columns]
    return [*cells, *(_text(pivot, row, "", name) for name in pivot.beside)]


def _text(pivot: Pivot, row: tuple[str, ...], column: str, name: str | None = None) -> str:
    values, found = pivot.value(row, column, name), pivot.at(row, column)
    if not values:
        return _other_metric(found) if found and name is None else ""
    return _figure(values, pivot.kind(name or pivot.name), found)


def _other_metric(found: Sequence[Entry]) -> str:
    """What cells without the metric of the table are judged by, after its name; how they ended where they have none."""
    name = next((judged_by(one.metrics, *headlines(one.cell)) for one in found if one.metrics), None)
    having = [one.metrics[name] for one in found if name in one.metrics]
    if not having:
        return found[0].state
    return f"{name} {_figure([one.value for one in having], having[0].kind, found)}"


def _figure(values: Sequence[float], kind: str, found: Sequence[Entry]) -> str:
    """The value of a cell, or the median and the range of its repetitions."""
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


def draw(path: Path, found: Sequence[Entry], title: str, by: Sweep | None = None) -> None:
    """A dot for each result, rows as in the table, a colour a column. Nothing where there is nothing to compare.

    A cell without a number is a word behind its row: failed.
    """
    pivot = Pivot(found, by)
    if sum(bool(pivot.value(row, column)) for row in pivot.rows for column in pivot.columns) < 2:
        return
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


def _numberless(pivot: Pivot, row: tuple[str, ...]) -> str:
    """What the table has of a row's cells that no dot stands for: `failed`, or `16: failed` of one among others."""
    words = {column: _text(pivot, row, column) for column in pivot.columns if not _finite(pivot.value(row, column))}
    if len(words) == len(pivot.columns) and len(set(words.values())) == 1:
        return next(iter(words.values()))
    return ", ".join(f"{column}: {word}" for column, word in words.items() if word)


def _finite(values: Sequence[float]) -> bool:
    """Whether there is a number to draw."""
    return any(map(math.isfinite, values))
