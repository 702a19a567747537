"""Tables as CSV: UTF-8, a line feed after each row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _csv import Writer


@contextmanager
def csv_file(path: Path) -> Iterator[Writer]:
    """A new file, and what writes its rows."""
    with path.open("w", newline="", encoding="utf-8") as file:
        yield csv_rows(file)


def csv_rows(file: TextIO) -> Writer:
    """What writes rows into an open file."""
    return csv.writer(_LineFeeds(file))


class _LineFeeds:
    """Takes rows that end in CR LF: only in these does csv of Python 3.11 put a lone carriage return in quotes."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> None:
        self.file.write(row.removesuffix("\r\n") + "\n")
