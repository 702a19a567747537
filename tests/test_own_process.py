"""A command in a separate process: the message where it does not answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command import write_files

from pipeline.errors import RunError
from pipeline.machine import own_process
from pipeline.machine.own_process import OwnProcess
from pipeline.machine.threads import SPINS


@pytest.fixture
def process(tmp_path: Path) -> OwnProcess:
    return OwnProcess(place="cpu", cores=1, folder=tmp_path)


@pytest.mark.parametrize("asked", [True, False])
def test_one_that_takes_too_long_is_said_to(process: OwnProcess, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    monkeypatch.setattr(own_process, "LONG", 0.5)
    said = "did not answer within 0 s" if asked else "did not end within 0 s"
    command = [sys.executable, "-c", "import time; time.sleep(100)"]
    with process.started(command) as running, pytest.raises(RunError, match=f"^{said}$"):
        running.ask({"do": "time"}) if asked else running.wait()


def test_one_that_ends_instead_of_an_answer_is_quoted(process: OwnProcess) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such device')"]
    said = r"^ended with exit status 1: no such device$"
    with process.started(command) as running, pytest.raises(RunError, match=said):
        running.answer()


def test_it_imports_what_this_process_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel by its dotted name was not found: neither beside the command nor by a relative PYTHONPATH."""
    write_files(tmp_path / "project", {"beside.py": "", "my/ours.py": ""})
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PYTHONPATH", "my")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "project"), *sys.path])
    process = OwnProcess(place="cpu", cores=1, folder=tmp_path)
    with process.started([sys.executable, "-c", "import beside, ours; print(1)"]) as running:
        assert running.answer() == 1


@pytest.mark.parametrize(
    ("given", "spins"), [({}, str(SPINS)), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "PASSIVE"}, None)]
)
def test_torchs_threads_wait_as_in_its_runs(
    process: OwnProcess, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], spins: str | None
) -> None:
    """stage=devices measured torch with 5,000 spins beside backend=torch, and with 300,000 beside another backend."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    asks = "import json, os; print(json.dumps(os.environ.get('GOMP_SPINCOUNT')))"
    with process.started([sys.executable, "-c", asks]) as running:
        assert running.answer() == spins
