"""The command as a user gives it: its own process, in its own folder, with the configs as they ship."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from warm import Begun, server, server_of

from pipeline.runs import lookup as runs_below
from pipeline.runs.records import Status, read_status

COMMAND = [sys.executable, "-m", "pipeline"]
DIGITS = ("dataset=digits", "training=quick", "training.epochs=2", "training.batch_size=32")
UNTRACKED = ("runs", "show", "compare", "delete", "frameworks")  # stages that are given no tracking
LONG = 600.0  # seconds: costs nothing where all goes well
OTHERS = ("PIPELINE_", "MLFLOW_", "HYDRA_", "PYTEST_")
# Noted here once: what a test imports (MLflow, Lightning, TensorFlow, scikit-learn) sets variables for this process,
# and after it no command would suit a process that was warm before.
# PIPELINE_CACHE stays: it is where the data lie on a machine without a network.
STARTED_WITH = {
    name: value for name, value in os.environ.items() if name == "PIPELINE_CACHE" or not name.startswith(OTHERS)
}

Done = subprocess.CompletedProcess[str]

TORCH_THEN_WIDE = ("torch", *(pytest.param(name, marks=pytest.mark.wide) for name in ("tensorflow", "jax")))
TWO_THEN_WIDE = ("torch", "jax", pytest.param("tensorflow", marks=pytest.mark.wide))


def environment(**changes: str) -> dict[str, str]:
    """The environment without what a developer may have set, and without GPUs: these tests hold on any machine."""
    return {**STARTED_WITH, "CUDA_VISIBLE_DEVICES": "-1", "COLUMNS": "200", **changes}


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write texts by their path below `folder`."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def pipeline(folder: Path, *arguments: str, **changes: str) -> Done:
    """`python -m pipeline <arguments>` in `folder`, untracked where nothing names tracking; `changes` are to the
    environment."""
    return _run(folder, untracked(arguments, changes), changes, refused=False)


def untracked(arguments: tuple[str, ...], changes: Mapping[str, str]) -> tuple[str, ...]:
    """The words of a command that runs something, with tracking=none where neither they nor a variable name tracking.

    A run waits for MLflow at its end, whose import takes longer than most of what is tested.
    """
    words = dict(word.lstrip("+").partition("=")[::2] for word in arguments)
    named = "resume" in words or any(key.partition(".")[0] == "tracking" for key in words)
    runs_nothing = words.get("stage") in UNTRACKED or any(flag in words for flag in ("--help", "-h", "--cfg", "--info"))
    if named or runs_nothing or any(name.startswith("MLFLOW_") for name in changes):
        return arguments
    return (*arguments, "tracking=none")


def _run(folder: Path, arguments: tuple[str, ...], changes: dict[str, str], *, refused: bool) -> Done:
    result = environment(**changes)
    warm = server(folder, arguments, environment(), refused=refused)
    if warm is not None and warm.suits(result):
        return warm.run(folder, arguments, result, LONG)
    command = [*COMMAND, *arguments]
    return subprocess.run(command, cwd=folder, env=result, capture_output=True, text=True, timeout=LONG, check=False)


def script(folder: Path, backend: str, file: Path, *arguments: str, **changes: str) -> Done:
    """`python <file> <arguments>` in `folder`, in a process that has imported the framework."""
    result = environment(**changes)
    warm = server_of(backend, environment())
    if warm.suits(result):
        return warm.run(folder, arguments, result, LONG, file)
    command = [sys.executable, str(file), *arguments]
    return subprocess.run(command, cwd=folder, env=result, capture_output=True, text=True, timeout=LONG, check=False)


def begun(folder: Path, *arguments: str, **changes: str) -> Begun | subprocess.Popen[bytes]:
    """The same, not waited for. Only one of a backend at a time."""
    arguments, result = untracked(arguments, changes), environment(**changes)
    warm = server(folder, arguments, environment())
    if warm is not None and warm.suits(result):
        return warm.begin(folder, arguments, result)
    command, nowhere = [*COMMAND, *arguments], subprocess.DEVNULL
    return subprocess.Popen(command, cwd=folder, env=result, stdout=nowhere, stderr=nowhere)


def done(folder: Path, *arguments: str, **changes: str) -> Path:
    """The folder of the run that the command makes; it must succeed."""
    before = set(runs(folder))
    result = pipeline(folder, *arguments, **changes)
    assert result.returncode == 0, f"status {result.returncode}: {result.stdout}{result.stderr}"
    (made,) = set(runs(folder)) - before
    assert status(made).state == "FINISHED"
    return made


def refused(folder: Path, *arguments: str, **changes: str) -> str:
    """The message of a command that is refused: one line, exit status 2, and nothing written or removed."""
    _wait_for_trackers(folder)
    before = contents(folder)
    result = _run(folder, arguments, changes, refused=True)
    assert contents(folder) == before
    return message(result)


def _wait_for_trackers(folder: Path) -> None:
    """Those of earlier commands in `folder`: on a busy machine they send on long after their runs have ended."""
    if not list(folder.rglob("mlflow.json")):
        return
    follows = [process for process in psutil.process_iter(["cmdline", "cwd"]) if _follows(process, folder)]
    _, still = psutil.wait_procs(follows, timeout=LONG)
    assert not still


def _follows(process: psutil.Process, folder: Path) -> bool:
    words = process.info["cmdline"] or []
    return words[1:4] == ["-m", "pipeline.tracking", "follow"] and process.info["cwd"] == str(folder.resolve())


def failed(folder: Path, *arguments: str, **changes: str) -> str:
    """The message of a command that ends a run it has begun: as `refused`, with one FAILED run that tells the same."""
    before = set(runs(folder))
    result = pipeline(folder, "tracking=none", *arguments, **changes)
    (made,) = set(runs(folder)) - before
    said = message(result)
    assert (status(made).state, status(made).error) == ("FAILED", said)
    assert not list((made / "artifacts").rglob("*.*"))
    return said


def message(result: Done) -> str:
    """The error message of a user's mistake."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert lines[-1].startswith("error: "), result.stderr
    assert sum(line.startswith("error: ") for line in lines) == 1
    return lines[-1].removeprefix("error: ")


def without_place(text: str) -> str:
    """A message without where in the user's code it was raised."""
    return re.sub(r", in [\w<>]+ \(\S+, line \d+\)", "", text)


def contents(folder: Path) -> dict[str, Any]:
    """Every file and folder below `folder`, with size and time of change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def brought(folder: Path, module: str) -> Path:
    """A folder of packages below `folder`, in which the distribution `<module>-cpu` 1.5 brings a module, of 3,000 bytes
    by its list of files."""
    place = folder / "site-packages"
    about = f"{module}_cpu-1.5.dist-info"
    named = f"Metadata-Version: 2.1\nName: {module}-cpu\nVersion: 1.5\n"
    listed = f"{module}/__init__.py,,3000\n{about}/RECORD,,\n"
    write_files(place, {f"{module}/__init__.py": "", f"{about}/METADATA": named, f"{about}/RECORD": listed})
    return place


def runs(folder: Path) -> list[Path]:
    """The runs of the commands given in `folder`, oldest first."""
    return runs_below.run_folders(folder / "runs")


def status(run: Path) -> Status:
    """How a run stands."""
    found = read_status(run)
    assert found is not None
    return found


def with_small_disk(size: str, where: Path) -> list[str] | None:
    """A command prefix under which `where` is a disk of `size`; None where no such thing may be made."""
    mount = 'mount -t tmpfs -o size="$0" pipeline "$1" && shift && exec "$@"'
    prefix = ["unshare", "-rm", "sh", "-c", mount, size, str(where)]
    try:
        able = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return None
    return prefix if able else None
