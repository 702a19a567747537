"""CSV files: what is read is what was written."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import pipeline
from pipeline.report import csv_file as module
from pipeline.report.csv_file import csv_file


@pytest.mark.parametrize("text", ["a\rb", "a\nb", "a\r\nb", "a\r\n", "\r", 'a,"b"'])
def test_a_field_of_several_lines_is_read_as_it_was_written(text: str, tmp_path: Path) -> None:
    with csv_file(tmp_path / "file.csv") as rows:
        rows.writerows([["name", "value"], [text, 1]])
    with (tmp_path / "file.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["name", "value"], [text, "1"]]
    assert (tmp_path / "file.csv").read_bytes().startswith(b"name,value\n")


def test_every_csv_file_is_written_by_it() -> None:
    """The csv module ends lines in CRLF, and half of the files had these."""
    sources = Path(pipeline.__file__).parent.rglob("*.py")
    writers = [path for path in sources if re.search(r"csv\.(writer|DictWriter)\(", path.read_text(encoding="utf-8"))]
    assert writers == [Path(module.__file__)]
