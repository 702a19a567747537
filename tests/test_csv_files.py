"""The CSV files that runs leave."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
WRITERS = {path: found for path in SOURCES.rglob("*.py") if (found := path.read_text(encoding="utf-8")).count("csv.")}


def test_there_are_writers() -> None:
    assert sum("csv.writer(" in text for text in WRITERS.values()) > 15


@pytest.mark.parametrize("path", WRITERS, ids=lambda path: str(path.relative_to(SOURCES)))
def test_lines_of_every_csv_file_end_alike(path: Path) -> None:
    """In LF, as those of our other files. The csv module's own are CRLF, and half of the files had these."""
    for call in (node for node in ast.walk(ast.parse(WRITERS[path])) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) in ("csv.writer", "csv.DictWriter"):
            ends = {each.arg: ast.unparse(each.value) for each in call.keywords}.get("lineterminator")
            assert ends == repr("\n"), ast.unparse(call)
