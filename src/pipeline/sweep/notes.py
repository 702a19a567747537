"""What the results of a sweep's cells note, of all together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.runs.result import read_result
from pipeline.sweep.entries import Entry
from pipeline.sweep.plan import Cell

NUMBER = re.compile(r"(?<![\w.:=-])\d[\d.,e+-]*")  # not of a name, as in fp16 and gpu:0, nor of a setting


def notes_of(entries: Sequence[Entry], most: int = 5) -> list[str]:
    """What the results of the cells note, the commonest first: how many cells note it, and which these are where they
    share a swept value. Notes that differ in numbers alone are one. Of more than `most` the number of the others.
    """
    alike: dict[str, list[tuple[Cell, str]]] = {}
    for entry in entries:
        result = None if entry.run is None else read_result(entry.run)
        for note in () if result is None else result.notes:
            alike.setdefault(NUMBER.sub("0", note), []).append((entry.cell, note))
    cells = [entry.cell for entry in entries if entry.state not in ("skipped", "not run")]
    lines = [_of_cells(found, cells) for found in sorted(alike.values(), key=_cells_of, reverse=True)[:most]]
    others = len(alike) - len(lines)
    return lines if not others else [*lines, f"and {others} other note{'s' * (others != 1)}, in the cells' results"]


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
