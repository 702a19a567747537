"""The parts of the tests are all of them, and none is in two."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import chosen, part_of

HERE = Path(__file__).parent
SUITE = (
    "import pytest\n\n@pytest.mark.wide\ndef test_one():\n    pass\n\n@pytest.mark.wide\ndef test_two():\n    pass\n"
)
COLLECT = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "wide"]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 9))
def test_every_file_is_in_one_part(sizes: list[int], count: int) -> None:
    files = [f"file {name}" for name, size in enumerate(sizes) for _ in range(size)]
    parts = [chosen(files, number, count) for number in range(count)]
    assert all(sum(flags) == 1 for flags in zip(*parts, strict=True))
    shares = [{name for name, here in zip(files, flags, strict=True) if here} for flags in parts]
    assert sum(len(share) for share in shares) == len(sizes)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("text", ["6/6", "-1/6", "1", "a/b", "1/0", ""])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--part .*: write a part and the number of parts, such as 0/6 to 5/6$"):
        part_of(text)


@pytest.mark.wide
def test_pytest_collects_the_part(tmp_path: Path) -> None:
    """Of three files, by this suite's own conftest.py: all of `wide`, and nothing that is not."""
    for name in ("conftest.py", "parts.py"):
        shutil.copyfile(HERE / name, tmp_path / name)
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(f"{SUITE}\n\ndef test_short():\n    pass\n")
    found = []
    for number in range(2):
        command = [*COLLECT, "--part", f"{number}/2"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        found.append({line for line in result.stdout.splitlines() if "::" in line})
    assert [len(part) for part in found] == [4, 2]
    names = {f"test_{name}.py::test_{test}" for name in ("a", "b", "c") for test in ("one", "two")}
    assert found[0] | found[1] == names
