"""What stages share that compare frameworks, each in a process that knows no other."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from pipeline import backends
from pipeline.contracts import Backend, Part, Stage
from pipeline.errors import Impossible, UserError, bad_choice, plural
from pipeline.experiment.effects import refuse_unread
from pipeline.machine.device import Device, Place, gpus
from pipeline.machine.installed import check_installed
from pipeline.machine.others import allowed_cores
from pipeline.machine.own_process import THREADS
from pipeline.report.table import in_markdown
from pipeline.runs.result import Metric, Result, Table
from pipeline.runs.run import Run
from pipeline.spec import choice, group_of

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

BACKENDS: dict[str, type[Backend]] = {"torch": backends.Torch, "tensorflow": backends.TensorFlow, "jax": backends.Jax}
TAKES = ("stage", "device", "seed", "tracking", "name", "output_dir", "hydra", "sweep", "experiment")


class ByFramework(Stage):
    """A stage that compares `frameworks`, each in its own process."""

    frameworks: tuple[str, ...]

    def title(self, experiment: Experiment) -> str:
        return choice(self)

    @property
    def inside(self) -> tuple[Part, ...]:
        """The backends, whose packages the frameworks need."""
        return self.computes_by

    @property
    def computes_by(self) -> tuple[Backend, ...]:
        """Those of the frameworks: without NumPy, which has no GPU."""
        return of_frameworks(self.frameworks)


def check_names(key: str, names: Sequence[str], choices: Collection[str]) -> None:
    """Refuse none, one that there is not, and one that is named twice. Raises UserError."""
    if not names:
        raise UserError(f"stage.{key}=[]: name one at least")
    for name in names:
        if name not in choices:
            raise bad_choice(f"stage.{key}", name, choices)
        if names.count(name) > 1:
            raise UserError(f"stage.{key}=[{','.join(names)}]: {name} is named twice")


def core_count() -> int:
    """How many cores this process may use."""
    return len(allowed_cores())


def check_cores(cores: int | None) -> None:
    """Refuse more than there are. Raises UserError."""
    if cores is not None and cores > core_count():
        raise UserError(f"stage.cores={cores}: this process may use {core_count()}")


def note_threads(run: Run, cores: int) -> None:
    """Note the variables that ask for another number of threads than the processes have in which a stage measures."""
    others = [f"{name}={value}" for name in THREADS if (value := os.environ.get(name)) and value != str(cores)]
    if others:
        threads = f"{plural(cores, 'thread')}, one for each core"
        run.note(f"{', '.join(others)}: ignored: what is measured runs in processes of {threads}")


def reported(
    run: Run,
    metrics: Iterable[Metric],
    rows: Iterable[tuple[str, str]],
    tables: tuple[Table, ...],
    faults: Iterable[str],
) -> Result:
    """The result of a comparison, whose rows and tables are also in summary.md, for the study's report."""
    result = Result(tuple(metrics), table=tuple(rows), tables=tables, failed="; ".join(faults) or None)
    run.artifact("summary.md").write_text(in_markdown(result.table, tables), encoding="utf-8")
    return result


def of_frameworks(names: Iterable[str]) -> tuple[Backend, ...]:
    """The backends, whose packages the frameworks need; NumPy has none."""
    return tuple(BACKENDS[name]() for name in names if name in BACKENDS)


def check_frameworks(names: Sequence[str]) -> None:
    """Refuse one that is not installed. Raises Impossible."""
    missing: dict[str, Impossible] = {}
    for backend in of_frameworks(names):
        try:
            check_installed({f"stage.frameworks={backend.name}": backend.packages})
        except Impossible as error:
            missing[backend.name] = error
    if missing:
        others = [one for one in names if one not in missing]
        without = f"; or choose stage.frameworks=[{','.join(others)}]" if others else ""
        raise Impossible(f"{next(iter(missing.values()))}{without}")


def check_taken(
    stage: str, keys: Iterable[str], instead: Mapping[str, str], otherwise: str, also: Collection[str] = ()
) -> None:
    """Refuse keys of trainings. `instead`: by group, what says it in its place. `also`: groups beside TAKES.

    Raises UserError.
    """
    unread = [key for key in keys if group_of(key) not in (*TAKES, *also)]
    refuse_unread({key: instead.get(group_of(key), otherwise) for key in unread}, f"stage={stage}")


def check_device(stage: str, device: Device, follows: Collection[str] = ("name",)) -> None:
    """Refuse settings of the device that the stage does not follow. Raises UserError."""
    for key, unset in asdict(Device()).items():
        value = getattr(device, key)
        if key not in follows and value != unset:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise UserError(f"device.{key}={shown} with stage={stage}: has no effect there; leave it out")


def cannot_use(names: Iterable[str], place: Place) -> dict[str, str]:
    """The frameworks that cannot use a device as they are installed, and why."""
    if place.kind == "cpu":
        return {}
    because = {one.name: one.no_gpu_because(gpus()[place.index]) for one in of_frameworks(names)}
    return {name: f"not run: {why}" for name, why in because.items() if why}
