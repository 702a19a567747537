"""When a training writes checkpoints, and how a signal stops it: where its state is whole."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.exits import raise_if_stopped, stop_asked, stop_held_back
from pipeline.runs.checkpoint import Write, Writer, newest, newest_step
from pipeline.runs.run import seconds_since_start

if TYPE_CHECKING:
    from pipeline.experiment.training import Checkpoints
    from pipeline.runs.run import Run

# Where the training stands, as plain data, and what writes each file of a state that is a copy.
Contents = tuple[Mapping[str, Any], Mapping[str, Write]]


class Keeping:
    """One per training. `settings`: None for no checkpoints.

    `prepare`: takes down what the first copy will need and returns what makes it ready in the writer's thread: memory
    that is filled for the first time takes several times as long as memory that is kept. Set by the backend.
    """

    def __init__(self, run: Run, settings: Checkpoints | None) -> None:
        self.run = run
        self.prepare: Callable[[], Callable[[], object]] | None = None
        step = 0 if run.checkpoint is None else run.checkpoint.step
        self.writer = None if settings is None else Writer(run.folder, settings, step, run.say)

    @property
    def active(self) -> bool:
        return self.writer is not None and self.writer.active

    def stops_held_back(self) -> contextlib.AbstractContextManager[None]:
        """Round a training: a signal stops it between two blocks, where its state is whole."""
        return stop_held_back() if self.active else contextlib.nullcontext()

    def interrupts(self) -> bool:
        """Whether a block is to end early, for a stop that a signal has asked for."""
        return self.active and stop_asked()

    def after_block(self, step: int, contents: Callable[[], Contents], *, over: bool = False) -> None:
        """Write a checkpoint where one is due, or where the training is asked to stop; that stop is raised here.

        `over`: this was the last block, after which only a stop needs one.
        """
        if not self.active:
            raise_if_stopped()
            return
        assert self.writer is not None
        if stop_asked():
            self.save(step, contents)
            self.writer.wait()
            self.run.say(f"stopped at step {step:,}; {where_it_goes_on(self.run.folder, step)}")
            raise_if_stopped()
        if over or not self.writer.due(step):
            return
        if self.prepare is not None:
            self.writer.begin(self.prepare())
            self.prepare = None
        else:
            self.save(step, contents)

    @stop_held_back()
    def after_epoch(self, step: int, contents: Callable[[], Contents]) -> None:
        """Of a training that is whole at an epoch's end only, and prepares nothing."""
        self.after_block(step, contents)

    def save(self, step: int, contents: Callable[[], Contents]) -> None:
        """Begin to write a checkpoint of the present state."""
        assert self.writer is not None
        self.writer.wait()  # the copy before this one may still be read
        try:
            progress, files = contents()
        except OSError as error:  # of a user's training, whose state is written at once
            self.run.say(f"no checkpoint of step {step:,}: {error.strerror or error}")
            return
        self.run.journal.flush()
        common = {
            "step": step,
            "marks": dict(self.run.marks),
            "notes": list(self.run.notes),
            "seconds": self.run.earlier_s + seconds_since_start(),
            "journal_bytes": self.run.journal.size,
            "identity": dict(self.run.identity),
            "imported_beside": dict(self.run.imported()),
        }
        self.writer.write(step, {**progress, **common}, files, first=self.run.journal.sync)

    def now(self, step: int, contents: Callable[[], Contents]) -> None:
        """Write a checkpoint of the present state, and wait for it."""
        if self.active and newest_step(self.run.folder) != step:
            assert self.writer is not None
            self.save(step, contents)
            self.writer.wait()

    def close(self) -> None:
        """After the last step: finish the checkpoint that is being written."""
        if self.writer is not None:
            self.writer.close()


def where_it_goes_on(run: Path, step: int) -> str:
    """What a run that was stopped at a step goes on from: the state there, where it could be written."""
    if newest_step(run) == step:  # written and read a moment ago
        return f"{resume_words(run)} resumes from there"
    kept, _ = newest(run)
    if kept is None:
        return "its state could not be written, and it has no other checkpoint: it has to be run again"
    return f"{resume_words(run)} resumes from step {kept.step:,}, its newest checkpoint"


def resume_words(folder: Path) -> str:
    """What to type to go on with a run."""
    elsewhere = "" if folder.parent == Path("runs").absolute() else f" {_as_typed('output_dir', str(folder.parent))}"
    return f"{_as_typed('resume', folder.name)}{elsewhere}"


def _as_typed(key: str, value: str) -> str:
    """An override as it is typed: in Hydra's quotes where its grammar has other plans for a value, and the shell's."""
    if not re.fullmatch(r"[A-Za-z0-9_/.+-]+( [A-Za-z0-9_/.+-]+)*", value):
        escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + found[2].replace('"', r"\""), value)
        value = f'"{escaped}"'
    return shlex.quote(f"{key}={value}")
