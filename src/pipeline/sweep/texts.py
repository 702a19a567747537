"""What the cells of a grid have made besides metrics: the texts of stage=generate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.errors import cut
from pipeline.runs.result import read_result
from pipeline.sweep.plan import Cell

MOST = 400  # characters of a text


def made(cell: Cell) -> str | None:
    """What rows of its result hold it, `text` or `text 1`, `text 2`; None: numbers are all that the stage makes."""
    return cell.experiment.stage.makes if cell.experiment is not None else None


def of_cells(cells: Iterable[tuple[Cell, Path | None]]) -> list[tuple[str, str]]:
    """Each cell and what it has made, whole. `cells`: with their runs, where they have one."""
    rows = []
    for cell, run in cells:
        name, result = made(cell), read_result(run) if run is not None else None
        if name is None or result is None:
            continue
        own = [(row, text) for row, text in result.table if row.rstrip(" 0123456789") == name]
        rows += [(cell.label if row == name else f"{cell.label} {row}", text) for row, text in own]
    return rows


def shortened(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same with at most MOST characters of each text."""
    return [(cell, cut(text, MOST)) for cell, text in rows]
