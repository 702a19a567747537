"""Working folders and locales as few people have them: names with line ends, or that are no text of the locale."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from command import COMMAND, DIGITS, environment, runs, status

from pipeline.runs.deletion import cells_of
from pipeline.runs.noted_path import note_path, noted_path
from pipeline.tracking.record import note_cell, noted_cells

ODD = "two\nlines \udcff"  # \udcff: how Python has a byte that is not UTF-8
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


def test_a_path_of_any_bytes_is_noted(tmp_path: Path) -> None:
    note_path(tmp_path / "note", tmp_path / ODD)
    assert noted_path(tmp_path / "note") == tmp_path / ODD


def test_the_cells_of_a_grid_in_an_oddly_named_folder_are_found(tmp_path: Path) -> None:
    grid, *cells = (tmp_path / ODD / " / runs" / name for name in ("grid", "first", "second"))
    for folder in (grid, *cells):
        folder.mkdir(parents=True)
    for cell in cells:
        note_cell(grid, cell)
    assert noted_cells(grid) == cells
    assert cells_of(grid) == ["first", "second"]
    (grid / "cells.txt").write_bytes(b"first\nsec")  # half written
    assert noted_cells(grid) == cells[:1]


@pytest.mark.wide
def test_a_grid_runs_where_the_locale_lacks_letters_of_the_folder(tmp_path: Path) -> None:
    """Its cells failed with UnicodeEncodeError. Its own processes: a locale is chosen as Python starts."""
    place = tmp_path / "é ü"
    place.mkdir()
    done = subprocess.run(
        [*COMMAND, "-m", *DIGITS, "seed=0,1", "tracking=none"],
        cwd=place,
        env=environment(**ASCII),
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, os.fsdecode(done.stderr)
    assert b"2 done" in done.stderr


def in_shell(folder: Path, words: Sequence[str], closed: str) -> subprocess.CompletedProcess[str]:
    line = f"{shlex.join(words)} {closed}"
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_works_with_closed_streams(tmp_path: Path, closed: str) -> None:
    """Without standard output it ended in a traceback."""
    done = in_shell(tmp_path, [*COMMAND, "dataset=digits", "--cfg", "job"], closed)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_opened_next_does_not_become_a_closed_stream(tmp_path: Path) -> None:
    code = "reopen_closed(); print(open('next', 'w').fileno() > 2, file=sys.stderr)"
    words = [sys.executable, "-c", f"import sys; from pipeline.cli.streams import reopen_closed; {code}"]
    assert in_shell(tmp_path, words, ">&-").stderr == "True\n"


SYNC = """
import sys
from pipeline.tracking import __main__, sync

def opens(*_, **__):
    print(open("next", "w").fileno() > 2, file=sys.stderr)
    return 0

sync.sync, sys.argv = opens, ["tracking", "sync", "."]
sys.exit(__main__.main())
"""


def test_what_a_sync_opens_does_not_become_a_closed_stream(tmp_path: Path) -> None:
    """MLflow's database got the number of standard output, and what libraries print there."""
    done = in_shell(tmp_path, [sys.executable, "-c", SYNC], ">&-")
    assert (done.returncode, done.stderr) == (0, "True\n")


def test_a_sync_outlives_its_reader(tmp_path: Path) -> None:
    """`| head`: it ended in a traceback at the next run."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "pipeline.tracking", "sync", "."]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(), stdout=writer, stderr=subprocess.PIPE, timeout=600, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_messages_on_a_full_disk_do_not_end_the_run(tmp_path: Path) -> None:
    """It was taken for a run's folder on a full disk: FAILED, and exit status 120."""
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND, *DIGITS, "tracking=none"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
            stderr=full, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert ended.returncode == 0
    assert "test accuracy" in ended.stdout
    assert [status(run).state for run in runs(tmp_path)] == ["FINISHED"]


@pytest.mark.parametrize("command", [["-m", "pipeline", "stage=runs"], ["-m", "pipeline", "--help"]])
def test_a_current_folder_that_was_deleted_is_said(command: list[str], tmp_path: Path) -> None:
    assert in_a_deleted_folder(tmp_path, command) == GONE


@pytest.mark.wide
def test_a_current_folder_that_was_deleted_is_said_by_other_commands(tmp_path: Path) -> None:
    commands = (["-m", "pipeline", *DIGITS], ["-m", "pipeline.study", "check"])
    for command in commands:
        assert in_a_deleted_folder(tmp_path, command) == GONE


GONE = (2, "error: the current folder was deleted or moved away; change to one that exists (cd)\n")


def in_a_deleted_folder(folder: Path, command: list[str]) -> tuple[int, str]:
    (folder / "gone").mkdir()
    line = f"cd gone && rmdir ../gone && exec {shlex.join([sys.executable, *command])}"
    ended = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    return ended.returncode, ended.stderr
