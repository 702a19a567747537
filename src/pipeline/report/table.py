"""The tables at the end of a run."""

from __future__ import annotations

import math
import os
import re
import shlex
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipeline.cli.streams import between_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Drawn

    from pipeline.runs.result import Result, Table

LOOKED_AT = ("*.png", "*.html", "*.txt", "trace.json.gz")  # of a run's artifacts: what is for people
MOST_NAMES = 6  # of these in a folder
GAP = 2  # letters between two columns, as rich has them
HUGE = 1e12  # above the bytes of a memory, which are shown in full
NARROWEST = 10  # letters that a column is given at least
WIDEST_NAME = 0.4  # of the terminal's width: a longer name in front of values stands above its own
# Where the name of a column may be folded: `test/accuracy`, `model.layer_dtypes`, `time (s)`, `first call`; not 0.1.
UNIT_ENDS = r"(?<=\S)(?= \()"
PATH_ENDS = rf"{UNIT_ENDS}|(?<=/)(?=\w)|(?<=\.)(?=[^\W\d])"
NAME_ENDS = rf"{PATH_ENDS}|(?<=_)(?=\w)|(?<=\w)(?= \w)"

# Where what a cell names may be, such as a key or a path; a number stays whole, 1.4e-07 too.
CELL_ENDS = r"(?<=[/_-])(?<!\de-)(?=\w)|(?<=\.)(?=[^\W\d])"

RANGE = r" \([^()]+ to [^()]+, n=\d[^()]*\)"  # of `median_and_range` and `spread`


def show(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print `rows` of (name, value). A long value is folded between words: what has to be copied stays whole.

    A name too long to stand in front of its value stands above it, so that all values have room.
    """
    from rich.text import Text  # here, since a refusal needs the rest of this file's importers and not rich

    if title:
        console.print(title, style="italic", highlight=False, markup=False)
    most = console.width * WIDEST_NAME
    names = max((len(name) for name, _ in rows if len(name) <= most), default=0)
    for name, value in rows:
        if len(name) > most:
            console.print(Text(name, "dim"), soft_wrap=True)
        for first, line in enumerate(between_words(value, max(console.width - names - GAP, NARROWEST))):
            label = "" if first or len(name) > most else name
            text = Text.assemble((f"{label:<{names}}", "dim"), " " * GAP, line)
            text.rstrip()
            console.print(text, soft_wrap=True)


def show_result(console: Console, result: Result, folder: Path) -> None:
    """Print the tables of a run's result, which `read_result(folder)` gives too, where the run lies and what of it to
    look at."""
    for one in result.tables:
        show_table(console, one, of_words(one))
        console.print()
    show(console, result.title, [*result.table, ("run folder", os.path.relpath(folder)), *to_look_at(folder)])


def to_look_at(folder: Path) -> list[tuple[str, str]]:
    """The pictures, pages and texts below a run's artifacts, folder by folder, and what shows it in TensorBoard."""
    root, found = folder / "artifacts", dict[str, list[str]]()
    for path in sorted(path for pattern in LOOKED_AT for path in root.rglob(pattern)):
        if path.relative_to(root).parts[0] != "model":
            found.setdefault(path.parent.relative_to(folder).as_posix(), []).append(path.name)
    rows = [("to look at", "; ".join(f"{where}: {_first(names)}" for where, names in sorted(found.items())))]
    shown = [("TensorBoard", f"tensorboard --logdir {shlex.quote(os.path.relpath(folder.parent))}")]
    return rows * bool(found) + shown * (root / "tensorboard").is_dir()


def _first(names: Sequence[str]) -> str:
    """Of many, such as a sample after each validation, the first."""
    left = len(names) - MOST_NAMES
    return ", ".join(names) if left <= 1 else f"{', '.join(names[:MOST_NAMES])} and {left:,} more"


def show_table(console: Console, table: Table, left: Collection[str] = (), whole: Collection[str] = ()) -> None:
    """Print a table of several columns, the first and those of `left` to the left and the others to the right.

    Where the terminal is too narrow, names and cells are folded where they are made of parts, then anywhere, but for
    the columns of `whole`: these go beyond the edge, and can be copied all the same.
    """
    from rich.text import Text

    if table.title:
        console.print(table.title, style="italic", highlight=False, markup=False)
    said = ""
    if _width(table) > console.width:
        parts = tuple(tuple(_in_parts(cell) for cell in row) for row in table.rows)
        named = _names_folded(replace(table, rows=parts), whole, console.width)
        if console.is_terminal and (needs := _width(named)) > console.width and _without_ranges(table) != table:
            said = f"without ranges, which need a terminal {needs} columns wide; this one has {console.width}"
            named = _names_folded(_without_ranges(table), whole, console.width)
        names = dict(zip(table.columns, named.columns, strict=True))
        table = _at_ends(named, whole, console.width)
        left = [names[name] for name in left if name in names]
    width = max(console.width, least_width(table, whole) if whole else 0)
    for line in console.render_lines(_drawn(table, left, whole), console.options.update(width=width), pad=False):
        text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
        text.rstrip()  # what goes beyond the edge has no spaces behind it
        console.print(text, soft_wrap=True)
    if said:
        console.print(said, style="dim", highlight=False, markup=False)


def _without_ranges(table: Table) -> Table:
    """`0.52 *` of `0.52 (0.48 to 0.56, n=2) *`."""
    return replace(table, rows=tuple(tuple(re.sub(RANGE, "", cell) for cell in row) for row in table.rows))


def _names_folded(table: Table, whole: Collection[str], width: int) -> Table:
    """A table that is too wide, with the longest names of its columns folded, no more than is needed."""
    limits = [most for _, most in _widths(table)]
    without = _widths(replace(table, columns=tuple(_in_lines(name, whole) for name in table.columns)))
    for _ in range(sum(limits) + GAP * (len(limits) - 1) - width):  # a letter off the widest that can be folded
        able = [place for place, (_, least) in enumerate(without) if limits[place] > least]
        if not able:
            break
        limits[max(able, key=lambda place: limits[place])] -= 1
    pairs = zip(table.columns, limits, strict=True)
    return replace(table, columns=tuple(name if name in whole else _evenly_folded(name, most) for name, most in pairs))


def _evenly_folded(name: str, width: int) -> str:
    """The name of a column in as few lines as go into `width`, these as short as they can be; before its unit if that
    is enough, else between the parts of a path, and only then within a word of several: `train_accuracy`.
    """
    for ends in (UNIT_ENDS, PATH_ENDS):
        folded = _folded(name, width, ends)
        if max(map(len, folded.split("\n"))) <= width:
            return folded
    lines = _folded(name, width, NAME_ENDS).count("\n")
    tries = (_folded(name, narrower, NAME_ENDS) for narrower in range(1, width + 1))
    return next(folded for folded in tries if folded.count("\n") == lines)


def _in_lines(name: str, whole: Collection[str]) -> str:
    """The name of a column with a line for each of its parts."""
    return name if name in whole else re.sub(NAME_ENDS, "\n", name)


def _at_ends(table: Table, whole: Collection[str], width: int) -> Table:
    """A table that is still too wide, with its longest cells folded behind a sign: `optimizer.` and `learning_rate`."""
    limits = [most for _, most in _widths(table)]
    able = [place for place, name in enumerate(table.columns) if name not in whole]
    over = _width(table) - width
    for _ in range(over):  # a letter off the widest, as often as needed
        widest = max(able, key=lambda place: limits[place], default=None)
        if widest is None or limits[widest] <= NARROWEST:
            break
        limits[widest] -= 1
    rows = (
        tuple(_cell_folded(cell, limits[place]) if place in able else cell for place, cell in enumerate(row))
        for row in table.rows
    )
    return replace(table, rows=tuple(rows))


def _cell_folded(cell: str, width: int) -> str:
    """A cell folded between its words, and within those alone that are too long: `map_calls=auto` stays whole."""
    lines: list[str] = []
    for text in cell.split("\n"):
        lines.append("")
        for word in text.split(" "):
            first, *others = _folded(word, width).split("\n")
            if lines[-1] and len(lines[-1]) + 1 + len(first) > width:
                lines.append(first)
            else:
                lines[-1] = f"{lines[-1]} {first}".lstrip()
            lines += others
    return "\n".join(lines)


def _folded(cell: str, width: int, ends: str = CELL_ENDS) -> str:
    """A cell whose lines are no longer than `width`, as far as there are `ends` at which to fold them."""
    lines = []
    for text in cell.split("\n"):
        first, *others = re.split(ends, text)
        line = first
        for part in others:
            if len(line) + len(part) > width:
                lines.append(line)
                line = ""
            line += part if line else part.lstrip()
        lines.append(line)
    return "\n".join(lines)


def of_words(table: Table) -> list[str]:
    """The columns, behind the first, whose cells are words and not numbers: they are read from the left."""
    columns = zip_longest(table.columns, *table.rows, fillvalue="")
    return [name for name, *cells in columns if any(cells) and all(not cell or cell[0].isalpha() for cell in cells)]


def least_width(table: Table, whole: Collection[str]) -> int:
    """The letters of a line where the columns of `whole` are not folded, and the others no more than is readable."""
    widths = _widths(table)
    least = sum(width if name in whole else min(width, NARROWEST) for name, width in widths)
    return least + GAP * (len(widths) - 1)


def _drawn(table: Table, left: Collection[str], whole: Collection[str]) -> Drawn:
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(table.columns):
        justify: Literal["left", "right"] = "left" if not index or column in left else "right"
        drawn.add_column(Text(column), justify=justify, overflow="fold", no_wrap=column in whole)
    for row in table.rows:
        drawn.add_row(*map(Text, row))  # of a plain string rich would take `[conv1]` for its markup
    return drawn


def _widths(table: Table) -> list[tuple[str, int]]:
    """Each column's name and the letters of its longest line."""
    columns = zip_longest(table.columns, *table.rows, fillvalue="")
    return [(column[0], max(len(line) for cell in column for line in cell.split("\n"))) for column in columns]


def _width(table: Table) -> int:
    """The letters of a line of it."""
    widths = _widths(table)
    return sum(width for _, width in widths) + GAP * (len(widths) - 1)


def _in_parts(text: str) -> str:
    """A cell such as `0.52 (0.48 to 0.56, n=2)` with a line for each part."""
    return re.sub(r"(?<=\S) (?=\()", "\n", text)


def markdown(table: Table) -> str:
    """A table of several columns in Markdown, its title above it."""
    return f"{table.title}\n\n{markdown_rows(table.columns, table.rows)}"


def in_markdown(rows: Iterable[tuple[str, str]], tables: Iterable[Table]) -> str:
    """What the study's report shows of a run: what was found, then each table under its title."""
    return "".join(f"- {name}: {text}\n" for name, text in rows) + "".join(f"\n{markdown(table)}" for table in tables)


def markdown_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows in Markdown, the first column to the left and the others to the right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    cells = ([" ".join(cell.split("\n")).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def size(number: float) -> str:
    """Bytes for people: 1.2 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError("unreachable")


def figure(value: float) -> str:
    """Four digits behind the point; none from a thousand on, and powers of ten where none of the four would be left.

    And from HUGE on, of which nobody counts the digits.
    """
    if abs(value) >= HUGE:
        return f"{value:.4e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.001 else f"{value:.1e}"


def alike(values: Sequence[float], least: float) -> list[str]:
    """Numbers that are read together, in the digits of `figure`: of the largest, and as many more as give `least`, how
    far they are uncertain, two."""
    if not 1000 <= max(map(abs, values)) < HUGE:
        return [figure(value) for value in values]
    places = next((one for one in range(4) if abs(least) * 10**one >= 9.5 or not least), 4)
    return [f"{value:,.{places}f}" for value in values]


def with_sign(value: float, text: str) -> str:
    """The text of a difference with its sign."""
    return f"+{text}" if value > 0 else text


def change(difference: float) -> str:
    """A difference with its sign: four digits behind the point, a power of ten where none of the four would be left."""
    return f"{difference:+.4f}" if difference == 0 or abs(difference) >= 0.0001 else f"{difference:+.1e}"


def figure_of(value: float, kind: str) -> str:
    """The value of a metric of this kind: of a time, a rate or memory three digits, of a count that is whole none
    behind the point."""
    if kind in ("time", "memory") and 0.001 <= value < HUGE:
        return digits(value)
    return f"{value:,.0f}" if kind == "count" and float(value).is_integer() else figure(value)


def digits(value: float) -> str:
    """Three digits of what was measured: 1.23, 12.3, 1,234; two below a tenth: 0.012."""
    return f"{value:,.{_places(value)}f}"


def small(error: float | None, places: int = 1) -> str:
    """An error, of which a column spans many powers of ten: 1.4e-07, or 0; empty where none was measured."""
    return "" if error is None else f"{error:.{places}e}" if error else "0"


def percent(share: float | None) -> str:
    """A share: 12.3 %; empty where none was measured."""
    return "" if share is None else f"{100 * share:.1f} %"


def _places(value: float) -> int:
    """How many behind the point make three digits, or two below a tenth: more would be of the clock."""
    if 0 < value < 0.0995:
        return 1 - math.floor(math.log10(value))
    return 0 if value >= 99.5 else 1 if value >= 9.95 else 2


def seconds(number: float) -> str:
    """Seconds for people: 2.61 ms, 0.42 s, 75.3 s, 12 min 5 s."""
    if 0 < number < 0.0995:
        return f"{digits(1e3 * number)} ms"
    if number < 120:
        return f"{number:.2f} s" if number < 10 else f"{number:.1f} s"
    minutes, rest = divmod(round(number), 60)
    return f"{minutes} min {rest} s"


def file_heads(own: Sequence[str], others: Sequence[tuple[str, str]]) -> list[str]:
    """The heads in a file of the columns beside its `own`, given by name and kind (`setting` or `metric`).

    A head is the name, with the kind before it where another column has that name (`metric/error`).
    """
    taken = list(own)
    for name, kind in others:
        head = name
        while head in taken:
            head = f"{kind}/{head}"
        taken.append(head)
    return taken[len(own) :]


def counted(values: Sequence[float]) -> str:
    """How many finite or infinite values there are, and how many NaN: `n=4`, `n=4, 1 nan`."""
    lost = sum(map(math.isnan, values))
    return f"n={len(values) - lost}{f', {lost} nan' if lost else ''}"


def median_and_range(values: Sequence[float], kind: str = "result") -> str:
    """Of the numbers among the values of a metric of this kind: `0.2000 (0.1000 to 0.3000, n=2, 1 nan)`."""
    numbers = [value for value in values if not math.isnan(value)]  # with a NaN the order of the values would decide
    if not numbers:
        return f"nan (n={len(values)})"
    median, low, high = (figure_of(value, kind) for value in (statistics.median(numbers), min(numbers), max(numbers)))
    return f"{median} ({low} to {high}, {counted(values)})"


def spread(values: Sequence[float], unit: str = "") -> str:
    """Median, range and count, with three digits of the least: `1,234 images/s (1,200 to 1,250, n=9)`."""
    least, most = min(values), max(values)
    median, low, high = (f"{value:,.{_places(least)}f}" for value in (statistics.median(values), least, most))
    return f"{median}{unit}" if len(values) == 1 else f"{median}{unit} ({low} to {high}, n={len(values)})"
