"""The devices of this machine in every notation, and what each backend runs on them at which precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline import backends
from pipeline.machine.capability import runnable
from pipeline.machine.device import Place, canonical, gpus
from pipeline.machine.host import cpu_name
from pipeline.machine.precision import FORMATS
from pipeline.report.table import size
from pipeline.runs.result import Metric, count

KINDS: tuple[Any, ...] = (backends.Torch, backends.TensorFlow, backends.Jax)


def physical() -> list[tuple[Place, str]]:
    """The CPU and the GPUs, with what they are."""
    cards = [(Place("gpu", gpu.index), f"{gpu.name}, {size(gpu.memory_bytes)}") for gpu in gpus()]
    return [(Place("cpu"), cpu_name()), *cards]


def asked_for(device: str, place: Place) -> list[Place]:
    """What is to be measured: everything where `device` is auto, otherwise the `place` that it came to."""
    return [one for one, _ in physical()] if canonical(device) == "auto" else [place]


def names(place: Place, about: str) -> str:
    """What it is, and what each framework calls it; device= takes all of these names."""
    return f"{about}\ntorch {place.torch} · Keras {place.tensorflow} · TensorFlow {place.in_task} and {place.full}"


def precisions(place: Place) -> list[tuple[str, str]]:
    """For each backend, the precisions that run here and, for those that do not, why not."""
    gpu = gpus()[place.index] if place.kind == "gpu" else None
    found: list[tuple[str, str]] = []
    for backend in KINDS:
        without = backend().no_gpu_because(gpu) if gpu else None
        if without:
            found.append((f"{backend.name} on {place}", without))
            continue
        table = runnable(backend.name, place.kind, gpu)
        runs = " ".join(name for name in FORMATS if table[name] is None)
        refused = [f"{name}: {why.why}; instead {why.instead}" for name, why in table.items() if why]
        found.append((f"{backend.name} on {place}", "\n".join([runs, *refused])))
    return found


def counts() -> tuple[Metric, ...]:
    """In numbers: the GPUs, and how many precisions run with each backend on each device."""
    found = [count("gpus", len(gpus()))]
    for place, _ in physical():
        gpu = gpus()[place.index] if place.kind == "gpu" else None
        for backend in KINDS:
            usable = gpu is None or not backend().no_gpu_because(gpu)
            runs = [name for name, why in runnable(backend.name, place.kind, gpu).items() if usable and why is None]
            found.append(count(f"precisions/{place}/{backend.name}", len(runs)))
    return tuple(found)


def rows(backend: str, seen: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """All of it. `seen`: the devices as `backend` names them, logical ones too."""
    found = [(str(place), names(place, about)) for place, about in physical()]
    found += [] if gpus() else [("gpu", names(Place("gpu", 0), "no NVIDIA GPU found; the first would be"))]
    found += [(f"{backend} sees", "\n".join(seen)), ("", "")]
    found += [row for place, _ in physical() for row in precisions(place)]
    return (*found, ("", ""), ("GPUs by their datasheets", "stage.gpus=known shows them side by side"))
