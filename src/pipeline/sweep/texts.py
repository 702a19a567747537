"""What the cells of a grid have made besides metrics: the texts of stage=generate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.errors import cut
from pipeline.runs.result import read_result
from pipeline.sweep.entries import Entry
from pipeline.sweep.plan import Cell

MOST = 400  # characters of a text


def made(cell: Cell) -> str | None:
    """What rows of its result hold it, `text` or `text 1`, `text 2`; None: numbers are all that the stage makes."""
    return cell.experiment.stage.makes if cell.experiment is not None else None


def of_cells(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    """Each cell and what it has made, whole."""
    rows = []
    for entry in entries:
        name, label = made(entry.cell), entry.cell.label
        result = None if name is None or entry.run is None else read_result(entry.run)
        if result is None:
            continue
        own = [(row, text) for row, text in result.table if row.rstrip(" 0123456789") == name]
        rows += [(label if row == name else f"{label} {row}", text) for row, text in own]
    return rows


def shortened(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same with at most MOST characters of each text."""
    return [(cell, cut(text, MOST)) for cell, text in rows]
