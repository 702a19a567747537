"""Checkpoints: what a training that was killed needs to go on, in the run's own folder.

    checkpoints/step-0000000120/
      progress.json   where the training stood, and the hashes of the other files
      state           weights, optimizer, random generators: as the backend writes them
      best.npz        the best weights so far, where they are kept

A folder appears whole or not at all: it is written under another name and renamed. Writing is a thread's work; the
training waits only while its state is copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.machine.regular_file import open_regular, read_regular
from pipeline.runs.json_files import parsed

if TYPE_CHECKING:
    from pipeline.experiment.training import Checkpoints as Settings

FOLDER = "checkpoints"
NAMES = "step-" + 10 * "[0-9]"  # and not a user's copy of one, such as step-0000000120.bak
WRITING = ".writing"
Write = Callable[[Path], object]


@dataclass(frozen=True)
class Checkpoint:
    """One that is whole. `step`: optimizer steps that had been taken. `differences`: what is not as it was then."""

    folder: Path
    step: int
    progress: Mapping[str, Any]
    differences: tuple[str, ...] = ()

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def best(self) -> Path | None:
        path = self.folder / "best.npz"
        return path if path.exists() else None


def drop_unfinished(run: Path) -> None:
    """Delete the checkpoint that a run, which is dead, had not written to its end: nothing can go on from it."""
    shutil.rmtree(run / FOLDER / WRITING, ignore_errors=True)


def newest(run: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of a run that is whole, and a note for each newer one that is damaged."""
    notes: list[str] = []
    for folder in sorted((run / FOLDER).glob(NAMES), reverse=True):
        try:
            return read(folder, run), notes
        except (OSError, ValueError, KeyError, TypeError) as error:
            notes.append(f"{folder.name} is damaged ({error}); the one before it is used")
    return None, notes


def newest_step(run: Path) -> int | None:
    """The step of a run's newest checkpoint, whole or not; None where it has none."""
    return max((int(folder.name[5:]) for folder in (run / FOLDER).glob(NAMES)), default=None)


def read(folder: Path, run: Path) -> Checkpoint:
    """The checkpoint in a folder. Raises OSError, ValueError, KeyError or TypeError for one that is not whole."""
    kept = parsed(read_regular(folder / "progress.json"))
    if _progress_sha256(kept["progress"]) != kept["sha256"]:
        raise ValueError("progress.json has another sha256")
    for name, sha256 in kept["files"].items():
        if _file_sha256(folder / name) != sha256:
            raise ValueError(f"{name} has another sha256")
    if (run / "metrics.jsonl").stat().st_size < kept["progress"]["journal_bytes"]:
        raise ValueError("metrics.jsonl has lost records that came before it")
    return Checkpoint(folder, int(kept["progress"]["step"]), kept["progress"])


def remove(run: Path) -> None:
    """The run is finished, and nobody will go on from here."""
    shutil.rmtree(run / FOLDER, ignore_errors=True)


class Writer:
    """Writes a run's checkpoints, one at a time. `say`: gets a line where one cannot be written; training goes on."""

    def __init__(self, run: Path, settings: Settings, step: int, say: Callable[[str], object]) -> None:
        self.root, self.settings, self.say = run / FOLDER, settings, say
        self.last_step, self.last_time = step, time.monotonic()
        for later in self.root.glob(NAMES):  # damaged, or of a training that went another way
            if step and int(later.name[5:]) > step:
                shutil.rmtree(later, ignore_errors=True)
        self.pool: ThreadPoolExecutor | None = None
        self.under_way: Future[Any] | None = None

    @property
    def active(self) -> bool:
        return self.settings.every is not None or self.settings.every_s > 0

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self.under_way is not None and not self.under_way.done()

    def due(self, step: int) -> bool:
        """Whether it is time for another one, and the one before it is on the disk."""
        if self.busy:
            return False
        every, every_s = self.settings.every, self.settings.every_s
        by_steps = every is not None and step // every > self.last_step // every
        return by_steps or (every_s > 0 and time.monotonic() - self.last_time >= every_s)

    def write(
        self, step: int, progress: Mapping[str, Any], files: Mapping[str, Write], first: Callable[[], object]
    ) -> None:
        """Begin to write. `files`: what writes each, of a state that is a copy; `first`: what has to be done before."""
        self.wait()
        self.last_step, self.last_time = step, time.monotonic()
        self.begin(partial(self._write, step, progress, files, first))

    def begin(self, work: Callable[[], object]) -> None:
        """Have the thread do it; meanwhile no checkpoint is due."""
        self.pool = self.pool or ThreadPoolExecutor(1, "checkpoint")
        self.under_way = self.pool.submit(work)

    def wait(self) -> None:
        """Until what was begun is on the disk."""
        if self.under_way is not None:
            self.under_way.result()
            self.under_way = None

    def close(self) -> None:
        """Wait for the checkpoint that is being written, and end the thread that writes."""
        self.wait()
        if self.pool is not None:
            self.pool.shutdown()

    def _write(
        self, step: int, progress: Mapping[str, Any], files: Mapping[str, Write], first: Callable[[], object]
    ) -> None:
        try:
            first()
            self._write_whole(self.root / f"step-{step:010}", progress, files)
        except OSError as error:
            shutil.rmtree(self.root / WRITING, ignore_errors=True)  # on a full disk the journal needs its room
            self.say(f"no checkpoint of step {step:,}: {error.strerror or error}")

    def _write_whole(self, folder: Path, progress: Mapping[str, Any], files: Mapping[str, Write]) -> None:
        writing = self.root / WRITING
        shutil.rmtree(writing, ignore_errors=True)
        self.root.mkdir(exist_ok=True)  # not the run's folder, which may have been moved
        writing.mkdir()
        for name, write in files.items():
            write(writing / name)
            _sync(writing / name)
        kept = {
            "progress": progress,
            "sha256": _progress_sha256(progress),
            "files": {name: _file_sha256(writing / name) for name in files},
        }
        (writing / "progress.json").write_text(json.dumps(kept), encoding="utf-8")
        _sync(writing / "progress.json")
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was resumed and got here once before
        writing.rename(folder)
        _sync(self.root)
        for old in sorted(self.root.glob(NAMES))[: -self.settings.keep]:
            shutil.rmtree(old, ignore_errors=True)


def _progress_sha256(progress: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(progress, sort_keys=True).encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
