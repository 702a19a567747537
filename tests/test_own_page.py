"""Every example of docs/own.md runs exactly as the page prints it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command import done, write_files

PAGE = Path(__file__).resolve().parents[1] / "docs" / "own.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, str]:
    """The text of each section that has commands, by its title."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {title: text for title, text in zip(parts[::2], parts[1::2], strict=True) if "```sh" in text}


def commands(script: str) -> list[tuple[dict[str, str], list[str]]]:
    """The variables and the arguments of each line."""
    found = []
    for line in script.splitlines():
        before, _, after = line.partition("python -m pipeline ")
        found.append((dict(word.split("=", 1) for word in shlex.split(before)), shlex.split(after)))
    return found


def test_the_page_has_an_example_in_each_section() -> None:
    assert list(sections()) == [
        "A model",
        "Data",
        "A task",
        "A metric",
        "A schedule",
        "An augmentation",
        "An optimizer",
        "A stage",
        "A LightningModule",
        "A compiled keras.Model",
    ]


QUICK = ("A model", "A LightningModule")
TITLES = [title if title in QUICK else pytest.param(title, marks=pytest.mark.wide) for title in sections()]


@pytest.mark.parametrize("title", TITLES)
def test_an_example_of_the_page_runs(tmp_path: Path, title: str) -> None:
    scripts = []
    for language, text in BLOCK.findall(sections()[title]):
        if language == "sh":
            scripts.append(text)
        else:
            name, _, more = text.splitlines()[0].removeprefix("# ").partition(", ")
            assert len(text.splitlines()) < 25
            assert more in ("", "continued")
            write_files(tmp_path, {name: (tmp_path / name).read_text() + text if more else text})
    typed = [each for script in scripts for each in commands(script)]
    assert typed
    for variables, words in typed:
        done(tmp_path, *words, **variables)
