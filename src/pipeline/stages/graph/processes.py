"""Each framework in a process that knows no other, and each saved graph in one that does not know this package."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.backends.shared import run_saved
from pipeline.backends.shared.form_bench import Found, Wrong, compared
from pipeline.backends.shared.two_layer import Net, Reference
from pipeline.errors import RunError

LONG = 1800.0  # seconds for one process
READER = Path(run_saved.__file__)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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
    run([sys.executable, "-m", "pipeline.backends.shared.form_process", str(folder)], job, folder, asked.keras_on)
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
        run([sys.executable, "-I", str(READER), *arguments], job, folder, keras_on)
        with np.load(target) as read:
            losses, weights = compared(read["losses"], [read["w1"], read["w2"]], job.reference)
    except (RunError, Wrong) as error:
        return Saved(found.saved_as, size, fault=str(error))
    return Saved(found.saved_as, size, losses, weights)


def run(command: list[str], job: Job, folder: Path, keras_on: str) -> None:
    """Run a process on the job's cores, with nothing compiled before. Raises RunError with the last thing it said."""
    with on_cores(job.cores):
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(os.environ, job, folder, keras_on),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        _, said = process.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:
        raise RunError(f"did not end within {LONG:.0f} s") from None
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        lines = said.strip().splitlines() or ["it said nothing"]
        raise RunError(f"ended with exit status {process.returncode}: {lines[-1][:300]}")


def environment(given: Mapping[str, str], job: Job, folder: Path, keras_on: str) -> dict[str, str]:
    """Threads as many as cores, no GPU for a CPU's job, and empty caches of compiled programs."""
    found = {**given, **dict.fromkeys(THREADS, str(job.cores)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    found |= {"KERAS_BACKEND": keras_on, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_ENABLE_X64": "true"}
    found |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
    if job.place == "cpu":
        found |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    return found


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """A process that is started inside gets the first `count` of our cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
