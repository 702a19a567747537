"""stage=delete: what goes, what never does, and who is asked. MLflow's part is in test_tracking.py."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import filelock
import pytest
from command import COMMAND, contents, environment, pipeline, refused, runs, write_files

from pipeline.errors import UserError
from pipeline.runs import deletion
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json, write_json


def a_run(root: Path, name: str = "gone", **config: object) -> Path:
    journal = Journal.begin(root, name, config)
    journal.artifact_path("model/weights.npz").write_bytes(bytes(2048))
    journal.finish("FINISHED")
    return journal.folder


def test_runs_go_with_all_that_is_in_them_and_nothing_else(tmp_path: Path) -> None:
    """A link in a run is removed and its target stays; so does a run whose id begins alike."""
    kept, *gone = (a_run(tmp_path / "runs", name) for name in ("kept", "one", "two"))
    write_files(tmp_path, {"mine/data.txt": "mine"})
    (gone[0] / "artifacts" / "link").symlink_to(tmp_path / "mine")
    (gone[0] / "artifacts" / "other").symlink_to(kept)
    before = contents(kept) | contents(tmp_path / "mine")
    names = ",".join(run.name for run in gone)
    result = pipeline(tmp_path, "stage=delete", f"stage.runs=[{names}]", "stage.sure=true")
    assert (result.returncode, result.stdout.splitlines()) == (0, [f"deleted {run.name}" for run in gone])
    assert runs(tmp_path) == [kept]
    assert contents(kept) | contents(tmp_path / "mine") == before


def test_nothing_outside_output_dir_is_deleted(tmp_path: Path) -> None:
    run, elsewhere = a_run(tmp_path / "runs"), a_run(tmp_path / "elsewhere")
    (tmp_path / "runs" / "linked").symlink_to(elsewhere)
    write_json(tmp_path / "runs" / "status.json", {})
    for reference, said in (
        (elsewhere, "nothing outside of it is deleted"),
        (f"runs/../elsewhere/{elsewhere.name}", "nothing outside of it is deleted"),
        (f"{run}/artifacts/..", "nothing outside of it is deleted"),
        ("linked", "is a link; remove the link yourself"),
        ("runs/linked", "is a link; remove the link yourself"),
        ("..", "no such run"),
        ("runs", "no such run"),
        ("''", "name one run by run=<id>"),
        ("latest", "name the run by its id"),
    ):
        assert said in refused(tmp_path, "stage=delete", f"run={reference}", "stage.sure=true"), reference
    for given in ([], [f"run={run.name}", f"stage.runs=[{run.name}]"], [f"stage.runs=[{run.name},nosuch]"]):
        refused(tmp_path, "stage=delete", "stage.sure=true", *given)


def test_a_folder_of_runs_may_be_a_link_itself(tmp_path: Path) -> None:
    run = a_run(tmp_path / "large disk")
    (tmp_path / "runs").symlink_to(tmp_path / "large disk")
    assert pipeline(tmp_path, "stage=delete", f"run={run.name}", "stage.sure=true").returncode == 0
    assert contents(tmp_path / "large disk") == {}


def test_an_odd_id_is_a_name_and_no_pattern(tmp_path: Path) -> None:
    odd = a_run(tmp_path / "runs").rename(tmp_path / "runs" / "[a-z]* 'x")
    kept = a_run(tmp_path / "runs", "kept")
    result = pipeline(tmp_path, "stage=delete", 'run="[a-z]* \'x"', "stage.sure=true")
    assert result.returncode == 0, result.stderr
    assert (odd.exists(), runs(tmp_path)) == (False, [kept])


def test_a_run_that_is_alive_is_refused(tmp_path: Path) -> None:
    other, code = (
        a_run(tmp_path / "runs"),
        "import sys; from pathlib import Path; from pipeline.runs.journal import Journal",
    )
    begin = f"{code}; print(Journal.begin(Path('runs'), 'alive', {{}}).id, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", begin], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        said = refused(tmp_path, "stage=delete", f"stage.runs=[{other.name},{name}]", "stage.sure=true")
        where = f"process {process.pid} on {os.uname().nodename}"
        assert said.startswith(f"run={name}: is still running ({where}); stop it first")
        process.communicate("")


@pytest.mark.parametrize("where", [{"host": "another"}, {"pid_namespace": "pid:[1]"}])
def test_a_run_elsewhere_that_has_been_silent_for_hours_is_refused(tmp_path: Path, where: dict[str, str]) -> None:
    """A grid's own journal is written when its last cell has ended."""
    run = Journal.begin(tmp_path / "runs", "grid", {}).folder
    write_json(run / "status.json", {**read_json(run / "status.json"), **where})
    for path in run.iterdir():
        os.utime(path, (time.time() - 5 * 3600,) * 2)
    said = refused(tmp_path, "stage=delete", f"run={run.name}", "stage.sure=true")
    process = f"process {os.getpid()} on {where.get('host', os.uname().nodename)}"
    assert said.startswith(f"run={run.name}: is RUNNING ({process}, which cannot be seen from here)")
    assert f"if you know that it is dead, remove {run} yourself" in said
    for path in run.iterdir():
        os.utime(path, (time.time() - 8 * 86400,) * 2)
    assert pipeline(tmp_path, "stage=delete", f"run={run.name}", "stage.sure=true").returncode == 0


def test_a_run_whose_status_another_process_holds_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path)
    monkeypatch.setattr(deletion, "LOCK_SECONDS", 0.0)
    with (
        filelock.FileLock(run / "status.lock"),
        pytest.raises(UserError, match="another process holds its status"),
        deletion.held(tmp_path, run),
    ):
        pass
    deletion.delete_folder(run)
    with pytest.raises(UserError, match="it is gone already"), deletion.held(tmp_path, run):
        pass
    assert not run.exists()


def test_what_names_a_run_is_said(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    source, cell = a_run(root, "source"), a_run(root, "cell")
    user, grid = a_run(root, "user", run=str(source)), a_run(root, "grid")
    (grid / "cells.txt").write_text(f"{cell}\n")
    write_files(tmp_path, {"study/train/receipt.json": f'{{"run": "{source.name}"}}'})

    def said(*names: str) -> str:
        result = pipeline(tmp_path, "stage=delete", f"stage.runs=[{','.join(names)}]")
        assert result.returncode == 2 and "nobody can be asked here; stage.sure=true" in result.stderr
        return result.stderr

    assert f"{source.name} is named by run {user.name}, the study (study/train)\n" in said(source.name)
    assert f"{cell.name} is named by run {grid.name}\n" in said(cell.name)
    assert "the runs of its 1 cell stay" in said(grid.name)
    together = said(grid.name, cell.name)
    assert "is named by" not in together and "stay" not in together
    assert len(runs(tmp_path)) == 4


def test_a_copy_is_not_taken_for_the_run_whose_name_it_begins_with(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    copy = shutil.copytree(run, tmp_path / f"{run.name}-copy")
    user, both = a_run(tmp_path, "user", run=str(copy)), a_run(tmp_path, "both", runs=[str(run), str(copy)])
    named = deletion.users_of(tmp_path, [run, copy])
    assert {name: set(users) for name, users in named.items()} == {
        run.name: {f"run {both.name}"},
        copy.name: {f"run {user.name}", f"run {both.name}"},
    }


@pytest.mark.parametrize(("answer", "left"), [("y\n", 0), ("\n", 1), ("latest\n", 1)])
def test_on_a_terminal_the_user_is_asked(tmp_path: Path, answer: str, left: int) -> None:
    run = a_run(tmp_path / "runs")
    text, status = asked(tmp_path, run, lambda: answer)
    assert "delete this run for good?" in text and "2." in text
    assert (len(runs(tmp_path)), status) == (left, 2 if left else 0)


def test_a_run_that_goes_on_while_the_user_is_asked_is_not_deleted(tmp_path: Path) -> None:
    killed = Journal.begin(tmp_path / "runs", "killed", {})
    killed.finish("KILLED")
    again: list[Journal] = []

    def go_on() -> str:
        again.append(Journal.reopen(killed.folder, 0))
        return "y\n"

    text, status = asked(tmp_path, killed.folder, go_on)
    assert f"error: run={killed.id}: is still running (process {os.getpid()} on " in " ".join(text.split())
    assert (runs(tmp_path), status) == ([killed.folder], 1)
    again[0].finish("FINISHED")
    assert read_json(killed.folder / "status.json")["state"] == "FINISHED"


def asked(folder: Path, run: Path, answer: Callable[[], str]) -> tuple[str, int]:
    """What a terminal shows, and the exit status; `answer` is called when the user is asked."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, "stage=delete", f"run={run.name}"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        text = b""
        while b"[y/N] " not in text:
            text += os.read(ours, 1000)
        os.write(ours, answer().encode())
        status = process.wait(600)
        with suppress(OSError):  # the end of a terminal that nobody holds open
            while more := os.read(ours, 1000):
                text += more
    os.close(ours)
    return text.decode(), status
