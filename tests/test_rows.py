"""Every row of the courses (A1 to E10) stands in a table of the README, with a recipe or a command that is taken."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.command_line import composed
from pipeline.errors import UserError
from pipeline.ready import check_stage, load_checked

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EVERY = tuple(
    f"{part}{row}" for part, last in zip("ABCDE", (19, 3, 6, 3, 10), strict=True) for row in range(1, last + 1)
)
ROWS = re.compile(r"\| ([A-E]\d+(?:, [A-E]\d+)*) \| (.*?) \|")
COMMAND = re.compile(r"`python -m pipeline ([^`]*)`")
RECIPE = re.compile(r"`(\w+)`")


def commands() -> Iterator[tuple[str, str]]:
    """The rows of a line of the tables, and each of its commands behind `python -m pipeline`."""
    for rows, cell in ROWS.findall(README):
        typed = COMMAND.findall(cell)
        grid = "-m " if "(`-m`)" in README.partition(f"| {rows} | {cell} |")[2].partition("\n")[0] else ""
        for words in typed or [f"{grid}experiment={name}" for name in RECIPE.findall(cell)]:
            yield rows, words


def test_every_row_has_a_command() -> None:
    found = {row for rows, _ in commands() for row in rows.split(", ")}
    assert [row for row in EVERY if row not in found] == []
    assert sorted(found - {*EVERY}) == []


@pytest.mark.parametrize("words", sorted({words for _, words in commands()}))
def test_its_command_is_taken(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as no machine is asked: a grid is listed, all else composed and checked."""
    taken: list[str] = []

    def check(config: Mapping[str, Any], keys: Sequence[str]) -> int:
        experiment = load_checked(config, keys)
        check_stage(experiment, keys)
        taken.append(experiment.name)
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pipeline"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    overrides = shlex.split(words)
    if "experiment=keras_search" in overrides:  # a search, whose first cell is checked
        with pytest.raises(UserError, match="a search decides its next cell when others have ended; nothing to list"):
            composed([*overrides, "sweep.dry_run=true"], check)
    elif "-m" in overrides:
        assert composed([*overrides, "sweep.dry_run=true"], check) == 0
    else:
        assert composed(overrides, check) == 0
        assert len(taken) == 1
