"""The tables at the end of a run."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.runs.result import Result, Table


def show(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print `rows` of (name, value)."""
    from rich.table import Table  # here, since a refusal needs the rest of this file's importers and not rich

    table = Table(title=title or None, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    console.print(table, highlight=False, markup=False)


def show_result(console: Console, result: Result, folder: Path) -> None:
    """Print the tables of a run's result, which `read_result(folder)` gives too, and where the run lies."""
    for one in result.tables:
        show_table(console, one)
        console.print()
    show(console, result.title, [*result.table, ("run folder", os.path.relpath(folder))])


def show_table(console: Console, table: Table, left: Collection[str] = (), whole: Collection[str] = ()) -> None:
    """Print a table of several columns, the first and those of `left` to the left and the others to the right.

    Where the terminal is narrow, lines are folded in all columns but those of `whole`.
    """
    from rich.table import Table as Drawn

    if table.title:
        console.print(table.title, style="italic", highlight=False, markup=False)
    drawn = Drawn(box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(table.columns):
        justify: Literal["left", "right"] = "left" if not index or column in left else "right"
        drawn.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn, highlight=False, markup=False)


def markdown(table: Table) -> str:
    """A table of several columns in Markdown, its title above it."""
    return f"{table.title}\n\n{markdown_rows(table.columns, table.rows)}"


def markdown_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows in Markdown, the first column to the left and the others to the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def size(number: float) -> str:
    """Bytes for people: 1.2 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError("unreachable")


def figure(value: float) -> str:
    """Four digits behind the point; none from a thousand on, and powers of ten where none of the four would be left."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.1e}"


def seconds(number: float) -> str:
    """Seconds for people: 0.42 s, 75.3 s, 12 min 5 s."""
    if number < 120:
        return f"{number:.2f} s" if number < 10 else f"{number:.1f} s"
    return f"{int(number // 60)} min {number % 60:.0f} s"


def spread(values: Sequence[float], unit: str = "") -> str:
    """Median, range and count: `1,234 images/s (1,200 to 1,250, n=9)`."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    text = f"{median:,.0f}{unit}"
    return text if len(ordered) == 1 else f"{text} ({ordered[0]:,.0f} to {ordered[-1]:,.0f}, n={len(ordered)})"
