"""Every commit that a page names beside its figures is in the history of this repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "bench" / "README.md"]
HASH = re.compile(r"(?<![\w.])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7}(?!\w)(?!\.\w)")  # no number, no sha256


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_is_taken_for_a_commit() -> None:
    text = "at commit a1ba8a5, (748c72f); 0.4019310 4019310 162e56bb e82adc0c7 defaced 20261122-214814."
    assert HASH.findall(text) == ["a1ba8a5", "748c72f"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_commit_that_a_page_names_exists(page: Path) -> None:
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("a shallow clone, or none: it has not all commits")
    named = sorted(set(HASH.findall(page.read_text(encoding="utf-8"))))
    assert [one for one in named if git("cat-file", "-e", f"{one}^{{commit}}").returncode] == []
