"""What makes the numbers of cells less than they say: what their results note, and how they were timed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pipeline.errors import plural
from pipeline.report.timed import LONGER, OF_CLOCK, OF_COLD, OF_OTHERS, of_machines, of_rates
from pipeline.runs.json_files import read_json
from pipeline.runs.result import read_result
from pipeline.sweep.entries import Entry
from pipeline.sweep.plan import Cell

OF_INTERVAL = "the interval is "  # begins a note on what an interval in the cell's result is of
NUMBER = re.compile(r"(?<![\w.:=-])\d[\d.,e+-]*")  # not of a name, as in fp16 and gpu:0, nor of a setting


def below_table(entries: Sequence[Entry], shown: Collection[str]) -> list[str]:
    """The notes on a table of the metrics `shown`: what the cells' results note, and which of them ended early.

    Of times among the metrics what makes them uncertain, too. Not what a cell says of the intervals in its
    result, which the table does not show.
    """
    timed = any(entry.metrics[name].kind == "time" for entry in entries for name in shown if name in entry.metrics)
    if not timed:
        return [*notes_of(entries, intervals=False), *ended_early(entries)]
    notes = notes_of(entries, without=(OF_OTHERS, OF_COLD, OF_CLOCK), intervals=False)
    return [*notes, *of_times(entries), *ended_early(entries)]


def notes_of(
    entries: Sequence[Entry], most: int = 5, without: Collection[str] = (), *, intervals: bool = True
) -> list[str]:
    """What the results of the cells note, the commonest first: how many cells note it, and which these are where they
    share a swept value. Notes that differ in numbers alone are one. Of more than `most` the number of the others.

    `without`: those that hold one of these, of cells that have a rate by which the same is said of them. `intervals`:
    also those on what an interval of the cell is of.
    """
    alike: dict[str, list[tuple[Cell, str]]] = {}
    for entry in entries:
        result = None if entry.run is None else read_result(entry.run)
        notes = () if result is None else result.notes
        if without and entry.run is not None and "training_rate" in read_json(entry.run / "receipt.json"):
            notes = tuple(note for note in notes if not any(words in note for words in without))
        for note in notes:
            if note.startswith(OF_INTERVAL) and not intervals:
                continue
            alike.setdefault(NUMBER.sub("0", note), []).append((entry.cell, note))
    cells = [entry.cell for entry in entries if entry.state not in ("skipped", "not run")]
    lines = [_of_cells(found, cells) for found in sorted(alike.values(), key=_cells_of, reverse=True)[:most]]
    others = len(alike) - len(lines)
    return lines if not others else [*lines, f"and {plural(others, 'other note')}, in the cells' results"]


def _cells_of(found: Sequence[tuple[Cell, str]]) -> int:
    return len({cell.number for cell, _ in found})


def _of_cells(found: Sequence[tuple[Cell, str]], cells: Sequence[Cell]) -> str:
    """`found`: the cells that have a note, and how it reads in each."""
    noting = {cell.number: cell.swept for cell, _ in found}
    shared = [
        f"{key}={value}"
        for key, value in found[0][0].swept.items()
        if {swept.get(key) for swept in noting.values()} == {value} != {cell.swept.get(key) for cell in cells}
    ]
    where = f" ({' '.join(shared)})" if shared else ""
    such = ", such as" if len({note for _, note in found}) > 1 else ""
    return f"{len(noting)} of {len(cells)} cells{where}{such}: {found[0][1]}"


def of_times(entries: Sequence[Entry]) -> tuple[str, ...]:
    """What makes times of cells less comparable than the same settings would."""
    receipts, period = receipts_of(entries), period_of(entries)
    longer = LONGER if period == "epoch" else "a smaller training.validate_every gives more of them"
    return (*of_rates(receipts, "cell", period, longer), *of_machines(receipts, "cell"))


def receipts_of(entries: Sequence[Entry]) -> list[Mapping[str, Any]]:
    """The receipts of the cells that are done."""
    return [read_json(entry.run / "receipt.json") for entry in entries if entry.state == "done" and entry.run]


def shares_of_others(entries: Sequence[Entry]) -> list[float | None]:
    """The share of the cores that others had while each cell trained; None where that took too short a time, or nobody
    counted, as where a problem is solved."""
    return [one.get("training_rate", {}).get("cores_of_others") for one in receipts_of(entries)]


def period_of(entries: Sequence[Entry]) -> str:
    """What lies between two validations of the first cell, in words."""
    return next((entry.cell.experiment.training.period for entry in entries if entry.cell.experiment), "epoch")


def ended_early(entries: Sequence[Entry]) -> Iterator[str]:
    """Where a clock or validations ended trainings, each after another number of steps."""
    by = [receipt.get("kept_weights", {}).get("ended_by") for receipt in receipts_of(entries)]
    for key in dict.fromkeys(filter(None, by)):
        yield (
            f"{key} ended {by.count(key)} of {plural(len(by), 'cell')}: test results and times of whole trainings are "
            "of different numbers of steps"
        )
