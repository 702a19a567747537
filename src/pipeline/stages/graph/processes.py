"""Each framework in a process that knows no other, and each saved graph in one that does not know this package."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.shared import run_saved
from pipeline.backends.shared.form_bench import Found, WrongResult, compared
from pipeline.backends.shared.two_layer import Net, Reference
from pipeline.errors import RunError
from pipeline.machine.own_process import OwnProcess, Running

READER = Path(run_saved.__file__)
PAUSE_S = 0.02  # after a sample, in which the threads of the process that was timed fall asleep
# Several processes share a GPU: none takes all of its memory, as TensorFlow and JAX do by themselves.
SHARED = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


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
    """`module`: the framework's forms. `keras_on`: Keras's backend in its processes. `rest_s`: seconds after a sample,
    in which its threads fall asleep."""

    module: str
    keras_on: str
    rest_s: float = PAUSE_S


class FormProcess:
    """A process with the forms of one framework (form_process.py), and what has come of its orders.

    `found`: of the forms that it was given. `ended`: why it takes no more orders.
    """

    def __init__(self, running: Running, folder: Path, rest_s: float) -> None:
        self.running, self.folder, self.rest_s = running, folder, rest_s
        self.found: list[Found] = []
        self.ended: str | None = None

    def listed(self) -> dict[str, list[Found]]:
        """Its FORMS and its WAYS before they are run, once the framework is imported; none where that fails."""
        try:
            return {kinds: [Found.read(one) for one in each] for kinds, each in self.running.answer().items()}
        except RunError as error:
            self.ended = str(error)
            return {"FORMS": [], "WAYS": []}

    def obey(self, **order: Any) -> None:
        """Have something done, if it still takes orders."""
        if self.ended is None:
            try:
                self.found = [Found.read(one) for one in self.running.ask(order)]
            except RunError as error:
                self.ended = str(error)


def in_turns(processes: Sequence[FormProcess], steps: int, rounds: int) -> Iterator[int]:
    """`rounds` samples of so many steps from each form, a process after the other; all others wait for orders.

    Gives the number of each round when it has ended.
    """
    time.sleep(max((process.rest_s for process in processes), default=0.0))
    for number in range(rounds):
        for process in processes:
            process.obey(do="time", steps=steps)
            time.sleep(process.rest_s)
        yield number


@contextlib.contextmanager
def form_process(job: Job, asked: Asked) -> Iterator[FormProcess]:
    """It begins to import the framework; the block may start others before it looks what is listed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(job, asked, folder)
        command = [sys.executable, "-m", "pipeline.backends.shared.form_process", str(folder)]
        with own_process(job, asked, folder).started(command) as running:
            yield FormProcess(running, folder, asked.rest_s)


def own_process(job: Job, asked: Asked, folder: Path) -> OwnProcess:
    """On the device and the cores of the job."""
    return OwnProcess(place=job.place, cores=job.cores, folder=folder, keras_on=asked.keras_on, variables=SHARED)


def write(job: Job, asked: Asked, folder: Path) -> None:
    """Write what the measuring process reads: `job.json`, and the net's arrays."""
    plain = {"module": asked.module, "place": job.place, "rate": job.net.rate, "steps": job.reference.steps}
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


@contextlib.contextmanager
def reading(job: Job, asked: Asked, found: Found, folder: Path) -> Iterator[Running]:
    """A training by a graph that was saved, where the code that made it cannot be imported."""
    assert found.saved_as is not None
    graph, target = folder / "saved" / found.name, folder / "trained.npz"
    arguments = (found.saved_as, str(graph), str(folder / "net.npz"), str(target), str(job.reference.steps))
    with own_process(job, asked, folder).started([sys.executable, "-I", str(READER), *arguments]) as running:
        yield running


def read(job: Job, found: Found, folder: Path, running: Running) -> Saved:
    """Wait for the process that trains a saved graph, and say how far its losses and weights are off."""
    assert found.saved_as is not None
    files = (folder / "saved" / found.name).rglob("*")
    size = sum(path.stat().st_size for path in files if path.is_file())
    try:
        running.wait()
        with np.load(folder / "trained.npz") as trained:
            losses, weights = compared(trained["losses"], [trained["w1"], trained["w2"]], job.reference)
    except (RunError, WrongResult) as error:
        return Saved(found.saved_as, size, fault=str(error))
    return Saved(found.saved_as, size, losses, weights)
