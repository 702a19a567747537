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
    return csv.writer(file, lineterminator="\n")
