"""Each framework in a process that knows no other, and each saved graph in one that does not know this package."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.backends.shared import run_saved
from pipeline.backends.shared.form_bench import Found, Wrong, compared
from pipeline.backends.shared.two_layer import Net, Reference
from pipeline.errors import RunError
from pipeline.machine.own_process import OwnProcess

READER = Path(run_saved.__file__)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What each process is asked: to train `net`, compare with `reference` and time, on `place` and `cores` of a CPU.

    `form_steps`: steps in a sample of a form; `repetitions`: numbers of steps in the samples of a way; `rounds`:
    samples of each. `starts`: new processes for the first calls of each way.
    """

    net: Net
    reference: Reference
    place: str
    cores: int
    form_steps: int
    repetitions: tuple[int, ...]
    rounds: int
    starts: int


@dataclass(frozen=True)
class Saved:
    """A graph in a process without this package: how far its numbers are from NumPy's, or what is wrong."""

    kind: str
    bytes: int
    losses: float | None = None
    weights: float | None = None
    fault: str | None = None


@dataclass(frozen=True)
class Asked:
    """`module`: the framework's forms. `kinds`: its list of them. `keras_on`: Keras's backend in that process."""

    module: str
    kinds: Literal["FORMS", "WAYS"]
    keras_on: str


def measured(job: Job, asked: Asked) -> tuple[list[Found], dict[str, Saved]]:
    """What comes of the forms, and of the graphs that they save. Raises RunError where the process fails."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        found = [Found.read(one) for one in answer(job, asked, None, folder)]
        saved = {one.name: reread(job, one, folder, asked.keras_on) for one in found if one.saved_as}
        return found, saved


def first_calls(job: Job, asked: Asked, name: str) -> tuple[float, float]:
    """Seconds of a form's first two steps, in a process that has made no other. Raises RunError where that fails."""
    with tempfile.TemporaryDirectory() as temporary:
        first, second = answer(job, asked, name, Path(temporary))
        return first, second


def answer(job: Job, asked: Asked, first: str | None, folder: Path) -> Any:
    """Start the process, and read what it found."""
    write(job, asked, first, folder)
    command = [sys.executable, "-m", "pipeline.backends.shared.form_process", str(folder)]
    OwnProcess(place=job.place, cores=job.cores, folder=folder, keras_on=asked.keras_on).run(command)
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def write(job: Job, asked: Asked, first: str | None, folder: Path) -> None:
    """What the process reads."""
    repetitions = (job.form_steps,) if asked.kinds == "FORMS" else job.repetitions
    plain = {
        "module": asked.module,
        "kinds": asked.kinds,
        "first": first,
        "place": job.place,
        "rate": job.net.rate,
        "steps": job.reference.steps,
        "repetitions": repetitions,
        "rounds": job.rounds,
    }
    (folder / "job.json").write_text(json.dumps(plain), encoding="utf-8")
    net, reference = job.net, job.reference
    w1, w2 = zip(*reference.weights.values(), strict=True)
    np.savez(
        folder / "net.npz",
        x=net.x,
        y=net.y,
        start_w1=net.w1,
        start_w2=net.w2,
        losses=reference.losses,
        after=list(reference.weights),
        w1=w1,
        w2=w2,
    )


def reread(job: Job, found: Found, folder: Path, keras_on: str) -> Saved:
    """Train by a graph that was saved, where the code that made it cannot be imported."""
    assert found.saved_as is not None
    graph, target = folder / "saved" / found.name, folder / "trained.npz"
    size = sum(path.stat().st_size for path in graph.rglob("*") if path.is_file())
    arguments = (found.saved_as, str(graph), str(folder / "net.npz"), str(target), str(job.reference.steps))
    try:
        OwnProcess(place=job.place, cores=job.cores, folder=folder, keras_on=keras_on).run(
            [sys.executable, "-I", str(READER), *arguments]
        )
        with np.load(target) as read:
            losses, weights = compared(read["losses"], [read["w1"], read["w2"]], job.reference)
    except (RunError, Wrong) as error:
        return Saved(found.saved_as, size, fault=str(error))
    return Saved(found.saved_as, size, losses, weights)
