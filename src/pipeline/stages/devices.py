"""stage=devices: what this machine has, how each framework calls it, and what runs on it at which precision; or the
GPUs there are, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import backends
from pipeline.contracts import Stage
from pipeline.errors import UserError, bad_choice
from pipeline.machine import gpu_table
from pipeline.machine.capability import Resolved, runnable
from pipeline.machine.device import Place, gpus
from pipeline.machine.host import cpu_name
from pipeline.machine.precision import FORMATS
from pipeline.report.table import size
from pipeline.runs import receipt
from pipeline.runs.result import Metric, Result, count
from pipeline.runs.run import Run
from pipeline.spec import group_of, spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

KINDS: tuple[Any, ...] = (backends.Torch, backends.TensorFlow, backends.Jax)
SHOWN = ("here", "known")
OF_TRAININGS = (
    *("precision", "model", "dataset", "loader", "augmentation", "optimizer", "loss", "schedule", "training"),
    "seed",
)
OF_STEPS = ("backend.compile", "backend.xla", "device.placement_log")


@spec
class Devices(Stage):
    """`gpus`: `here` for this machine, or `known` for the table of GPUs, which needs no framework.

    Of this machine the chosen backend is asked for its own (logical) devices, so it is the one that is imported.
    """

    recorded: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ("backend", "device")

    gpus: str = "here"

    def __post_init__(self) -> None:
        if self.gpus not in SHOWN:
            raise bad_choice("stage.gpus", self.gpus, SHOWN)

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys that are about a training, and for the table of GPUs those about this machine too."""
        for key in keys:
            group = group_of(key)
            if group in OF_TRAININGS or key in OF_STEPS:
                raise UserError(f"{key} with stage=devices: nothing is trained here; leave it out")
            if self.gpus == "known" and group in self.reads:
                raise UserError(f"{key} with stage.gpus=known: the table is of GPUs, not of this machine; leave it out")

    def run(self, experiment: Experiment, resolved: Resolved, run: Run | None) -> Result:
        """One table: devices, the backend's logical devices, precisions. The study records it as a run."""
        if run is not None:
            run.journal.write_receipt(receipt.before(experiment, resolved))
        if self.gpus == "known":
            return Result(metrics=_counts(), table=tuple(gpu_table.rows(gpus())))
        rows: list[tuple[str, str]] = [(str(place), _names(place, about)) for place, about in _physical()]
        seen = experiment.backend.load().logical_devices(experiment, resolved)
        rows += [(f"{experiment.backend.name} sees", "\n".join(seen))]
        rows += [("", "")] + [row for place, _ in _physical() for row in _precisions(place)]
        rows += [("", ""), ("other GPUs", "stage.gpus=known shows them side by side")]
        return Result(metrics=_counts(), table=tuple(rows))


def _physical() -> list[tuple[Place, str]]:
    cards = [(Place("gpu", gpu.index), f"{gpu.name}, {size(gpu.memory_bytes)}") for gpu in gpus()]
    return [(Place("cpu"), cpu_name()), *cards]


def _names(place: Place, about: str) -> str:
    return f"{about}\ntorch {place.torch} · Keras {place.tensorflow} · TensorFlow {place.full}"


def _precisions(place: Place) -> list[tuple[str, str]]:
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


def _counts() -> tuple[Metric, ...]:
    """In numbers: the GPUs, and how many precisions run with each backend on each device."""
    found = [count("gpus", len(gpus()))]
    for place, _ in _physical():
        gpu = gpus()[place.index] if place.kind == "gpu" else None
        for backend in KINDS:
            usable = gpu is None or not backend().no_gpu_because(gpu)
            runs = [name for name, why in runnable(backend.name, place.kind, gpu).items() if usable and why is None]
            found.append(count(f"precisions/{place}/{backend.name}", len(runs)))
    return tuple(found)
