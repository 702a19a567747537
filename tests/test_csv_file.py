"""CSV files: what is read is what was written."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pipeline.report.csv_file import csv_file


@pytest.mark.parametrize("text", ["a\rb", "a\nb", "a\r\nb", "a\r\n", "\r", 'a,"b"'])
def test_a_field_of_several_lines_is_read_as_it_was_written(text: str, tmp_path: Path) -> None:
    with csv_file(tmp_path / "file.csv") as rows:
        rows.writerows([["name", "value"], [text, 1]])
    with (tmp_path / "file.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["name", "value"], [text, "1"]]
    assert (tmp_path / "file.csv").read_bytes().startswith(b"name,value\n")
