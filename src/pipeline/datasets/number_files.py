"""Numbers in a file of the user's: a .npy array, or a .csv table with or without a row of names."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from pipeline.cli.streams import say_at_once
from pipeline.errors import UserError, cut, plural
from pipeline.machine.regular_file import as_named, fault_of, open_regular
from pipeline.spec import is_number

SUFFIXES = (".npy", ".csv")
MISSING = ("", "na", "n/a", "null", "none", "-", "?")  # no names of columns
OTHER_SEPARATORS = r"[;\t|]"
MISTYPED = r"[+-]?\d[\d_]*\.?[\d_]*"  # a number of the digits of any script, as 1_5: no name either


def check_there(key: str, text: str) -> None:
    """Refuse a file that is not there, or is of another kind. Raises UserError."""
    path = as_named(text)
    if fault := fault_of(path):
        raise UserError(f"{key}={text}: {fault}")
    if path.suffix not in SUFFIXES:
        raise UserError(f"{key}={text}: needs a .npy or a .csv file")


def read(key: str, text: str, what: str, width: int, wanted: str, names: Sequence[str] = ()) -> np.ndarray:
    """Its numbers (N, width) in float64, a row of the .csv a row of the array. Raises UserError.

    `what` a row is, and what is `wanted` of it, for messages. `names` of the columns, in the order that is wanted;
    none: whatever they are, if the first row is of names.
    """
    path = as_named(text)
    try:
        with open_regular(path) as file:
            read_csv = path.suffix != ".npy"
            found = _csv(file, names, f"{key}={text}", what) if read_csv else np.load(file, allow_pickle=False)
        rows = np.asarray(found).astype(np.float64, casting="same_kind")
    except (OSError, ValueError, TypeError, EOFError, MemoryError, csv.Error) as error:
        raise UserError(f"{key}={text}: no readable {what}s ({error})") from error
    rows = rows[:, None] if rows.ndim == 1 and width == 1 and len(rows) else rows
    if not rows.size:
        raise UserError(f"{key}={text}: holds no {what}s")
    if rows.ndim != 2 or rows.shape[1] != width:
        raise UserError(f"{key}={text}: holds an array of shape {rows.shape}; {wanted}")
    wrong = ~np.isfinite(rows).all(axis=1)
    if wrong.any():
        shown = ", ".join(f"{value:.6g}" for value in rows[wrong][0])
        raise UserError(
            f"{key}={text}: row {int(np.argmax(wrong)) + 1} holds numbers that are not finite: {cut(shown)}"
        )
    return rows


def named_rows(key: str, text: str) -> Iterator[list[str]]:
    """The rows of a .csv, one after another: that of the names first, and each other with as many cells.

    Raises UserError.
    """
    where = f"{key}={text}"
    try:
        with open_regular(as_named(text)) as file:
            rows = _each_row(file)
            head = next(rows, [])
            _check_names(head, where)
            yield head
            for number, row in enumerate(rows, start=1):
                _check_cells(row, head, number, where)
                yield row
    except OSError as error:
        raise UserError(f"{where}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: is not text in UTF-8; save it as such, and not compressed") from error
    except csv.Error as error:
        raise UserError(f"{where}: no readable .csv ({error})") from error


def _check_names(head: Sequence[str], where: str) -> None:
    """Refuse a first row that does not name each column. Raises UserError."""
    if not head or (len(head) == 1 and re.search(OTHER_SEPARATORS, head[0])):
        begins = f"its first row is {cut(head[0])!r}" if head else "is empty"
        raise UserError(f"{where}: {begins}; columns are separated by commas, and numbers have a decimal point")
    twice = next((name for name in head if head.count(name) > 1), None)
    if twice is not None or not all(head) or any(map(is_number, head)):
        odd = f"two columns are called {cut(twice)}" if twice else f"its first row is {cut(', '.join(head))}"
        raise UserError(f"{where}: {odd}; the first row has to name each column")


def _check_cells(row: Sequence[str], head: Sequence[str], number: int, where: str) -> None:
    """Refuse a row of more or fewer cells than the first one names. Raises UserError."""
    if len(row) != len(head):
        named = plural(len(head), "column")
        raise UserError(f"{where}: row {number} has {plural(len(row), 'cell')}, and the first row names {named}")


def floats(cells: Sequence[str]) -> list[float] | None:
    """The cells as numbers; None where one `is_number` refuses, which takes four times as long for many."""
    together = "".join(cells)
    if "_" in together or not together.isascii():
        return None
    try:
        return [*map(float, cells)]
    except ValueError:
        return None


def _each_row(file: BinaryIO) -> Iterator[list[str]]:
    """The cells of each line that is not empty."""
    with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        for row in csv.reader(text):
            cells = [cell.strip() for cell in row]
            if len(cells) > 1 or any(cells):
                yield cells


def of_others(key: str, text: str, names: Sequence[str]) -> tuple[str, ...]:
    """A note of the columns that `read` leaves out, since `names` are others. Of a file that it has read."""
    path = as_named(text)
    if path.suffix == ".npy":
        return ()
    with open_regular(path) as file:
        head = next(_each_row(file), [])
    if not {*names} & {*head} or {*head} <= {*names}:
        return ()
    others = ", ".join(name for name in head if name not in names)
    return (f"{key}={text}: not read, since the model does not take them: {cut(others, 300)}",)


def _csv(file: BinaryIO, names: Sequence[str], where: str, what: str) -> np.ndarray:
    """Columns in the order of `names`, wherever the file has them. Raises UserError, which names a row."""
    rows = [*_each_row(file)]
    if not names:
        rows = rows[_begins_with_names(rows, what) :]
    elif rows and ({*rows[0]} & {*names} or all(map(_is_name, rows[0]))):  # and no number that is mistyped
        head = rows.pop(0)
        if not {*names} <= {*head}:
            raise ValueError(f"its columns are {', '.join(head)}; a {what} is ({', '.join(names)})")
        return np.array(_numbers(_chosen(rows, head, names, where), where, names))
    return np.array(_numbers(rows, where))


def _chosen(rows: Sequence[Sequence[str]], head: Sequence[str], names: Sequence[str], where: str) -> list[list[str]]:
    """The cells of the columns `names`. Raises UserError."""
    _check_names(head, where)
    for number, row in enumerate(rows, start=1):
        _check_cells(row, head, number, where)
    places = [head.index(name) for name in names]
    return [[row[place] for place in places] for row in rows]


def _numbers(rows: Sequence[Sequence[str]], where: str, names: Sequence[str] = ()) -> list[list[float]]:
    """The cells as numbers, as many in each row. Raises UserError for the first row that has others.

    `names`: those of the columns, where they have some.
    """
    for number, row in enumerate(rows, start=1):
        if _is_unseparated(row):
            raise UserError(f"{where}: row {number} is {cut(row[0])!r}; numbers in a .csv are separated by commas")
        if len(row) != len(rows[0]):
            raise UserError(f"{where}: row {number} has {len(row)} numbers, the first row {len(rows[0])}")
        for place, cell in enumerate(row):
            if not is_number(cell):
                of = f" for {names[place]}" if names else ""
                raise UserError(f"{where}: row {number} has {cut(cell)!r}{of}, which is not a number")
    return [[float(cell) for cell in row] for row in rows]


def _is_unseparated(row: Sequence[str]) -> bool:
    """Whether its numbers stand in one cell, with something else than commas between them."""
    return len(row) == 1 and not is_number(row[0]) and any(map(is_number, re.split(r"[;\s]+", row[0].strip())))


def _begins_with_names(rows: Sequence[Sequence[str]], what: str) -> bool:
    """Whether the first row has no number, or counts the columns from 0 on, as pandas names them, which is said."""
    if not rows or _is_unseparated(rows[0]):
        return False
    counted = len(rows[0]) > 1 and [cell.strip() for cell in rows[0]] == [str(at) for at in range(len(rows[0]))]
    if counted:
        say_at_once(f"the first row, 0 to {len(rows[0]) - 1}, is read as the names of the columns, not as a {what}")
    cells = [cell.strip().lower() for cell in rows[0]]
    numbers = any(is_number(cell) or re.fullmatch(MISTYPED, cell) for cell in cells)
    return counted or not (numbers or all(cell in MISSING for cell in cells))


def _is_name(text: str) -> bool:
    return text.strip().isidentifier() and not is_number(text)
