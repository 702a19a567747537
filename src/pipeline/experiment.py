"""An experiment: everything that decides a result, built once from the composed config and never changed after."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from pipeline.errors import Impossible, UserError, bad_choice, bad_key, cut, shown
from pipeline.machine.device import Device
from pipeline.machine.precision import Precision
from pipeline.spec import build, build_as, choice, spec
from pipeline.variables import filled

METRICS = ("accuracy", "top5_accuracy", "macro_f1", "cross_entropy", "brier", "calibration_error")


@spec
class Training:
    """How long and in what portions to train.

    `log_every_n_steps`: one point in the journal is the mean over that many steps. `metrics`: figures of the test set
    to report beside accuracy and loss. `evaluation_batch_size`: images per step where nothing is learned.
    """

    epochs: Annotated[int, Field(gt=0, le=1_000_000)] = 10
    batch_size: PositiveInt = 32
    log_every_n_steps: PositiveInt = 10
    metrics: tuple[str, ...] = ("accuracy",)
    evaluation_batch_size: PositiveInt = 1000

    def __post_init__(self) -> None:
        for name in self.metrics:
            if name not in METRICS:
                raise bad_choice("training.metrics", name, METRICS)
        if len(set(self.metrics)) < len(self.metrics):
            raise UserError(f"training.metrics=[{','.join(self.metrics)}]: one of them is named twice")


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]  # a name made of digits is a number to YAML


@spec
class Settings:
    """The keys of the top level that are no group."""

    name: Text | None = None
    seed: NonNegativeInt = Field(default=0, lt=2**32)
    run: Text | None = None
    output_dir: str = "runs"

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", self.name):
            raise UserError(f"name={cut(self.name)}: use letters, digits, '.', '_' and '-', 60 at the most")
        if self.name is not None and not self.name.strip("."):
            raise UserError(f"name={self.name}: use something besides dots")
        if not self.output_dir:
            raise UserError("output_dir=: name a folder; every run gets a folder of its own in it")


@spec
class Sweep:
    """How a grid runs. None of it decides a cell's result.

    `jobs`: cells at once, on GPUs too (None: one for each GPU; on the CPU as many as `backend.threads` leaves cores
    for, one where it is not set, since a cell then takes every core). `timeout`: seconds that a cell may take. `retry`:
    which cells that ended without a result run again: those that were killed, also those that failed, or all, finished
    ones too. `impossible`: skip cells that cannot run here, or refuse the grid. `stop_after`: give up when the first so
    many cells all fail for one cause (0: never). `dry_run`: only list what would run, and why.
    """

    jobs: PositiveInt | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    retry: Literal["killed", "failed", "all"] = "killed"
    impossible: Literal["skip", "fail"] = "skip"
    stop_after: NonNegativeInt = 3
    dry_run: bool = False


# The config groups and, where everything else relies on it, the one class that a group's choices may name.
GROUPS: dict[str, type[Any]] = {
    "stage": object,
    "backend": object,
    "device": Device,
    "precision": Precision,
    "model": object,
    "dataset": object,
    "loader": object,
    "optimizer": object,
    "loss": object,
    "solver": object,
    "training": Training,
    "profiler": object,
    "tracking": object,
    "sweep": Sweep,
}

# Groups that the runs saved before they existed do not have.
SINCE = {"solver": {"_target_": "pipeline.pinn.solvers.none.Off"}}

# Keys that say what a run is called, where things lie, who looks on, who is told and how cells are run.
NOT_DECIDING = ("name", "run", "output_dir", "profiler", "tracking", "sweep")


def _builds(cls: type[Any], *arguments: str) -> bool:
    """Whether a class has a torch or a Keras builder that can be called with so many arguments."""
    for name in ("torch", "keras"):
        with suppress(AttributeError, TypeError):
            inspect.signature(getattr(cls, name)).bind("self", *arguments)
            return True
    return False


# By what a choice of the other groups is known, before its settings are looked at.
KINDS: dict[str, Callable[[type[Any]], bool]] = {
    "stage": lambda cls: hasattr(cls, "run"),
    "backend": lambda cls: hasattr(cls, "builder"),
    "model": lambda cls: hasattr(cls, "sizes") or (_builds(cls, "shapes") and not hasattr(cls, "slots")),
    "dataset": lambda cls: hasattr(cls, "residuals") or (hasattr(cls, "load") and not hasattr(cls, "builder")),
    "loader": lambda cls: hasattr(cls, "backends"),
    "optimizer": lambda cls: hasattr(cls, "slots"),
    "loss": lambda cls: _builds(cls) and not hasattr(cls, "slots"),
    "solver": lambda cls: hasattr(cls, "solve"),
    "profiler": lambda cls: hasattr(cls, "tool"),
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The checked config. `config` is the same as plain data: what is written, hashed and rebuilt from."""

    config: Mapping[str, Any]
    settings: Settings
    stage: Any
    backend: Any
    device: Device
    precision: Precision
    model: Any
    dataset: Any
    loader: Any
    optimizer: Any
    loss: Any
    solver: Any
    training: Training
    profiler: Any
    tracking: Any
    sweep: Sweep

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def name(self) -> str:
        """The run's name: the one given, or model (of a problem: solver), dataset, backend and precision, behind any
        stage but training."""
        if self.settings.name:
            return self.settings.name
        stage, dataset = choice(self.stage), choice(self.dataset)
        by = choice(self.solver) if self.solver.solve is not None else choice(self.model)
        name = f"{by}-{dataset}-{self.backend.name}"
        if not getattr(self.stage, "varies_precision", False):
            name += f"-{self.precision.name}"
        return name if stage == "classifier" else f"{stage}-{name}"

    @property
    def packages(self) -> tuple[str, ...]:
        """Whose versions have a part in the result: those that the specs name in `packages`."""
        return tuple(dict.fromkeys(name for names in self.needs.values() for name in names))

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """The distributions that each part names in `packages`, the backend's first, by `group=choice`."""
        read = ("backend", *(group for group in GROUPS if group == "stage" or self.reads(group)))
        parts = {group: getattr(self, group) for group in dict.fromkeys(read)}
        return {
            f"{group}={getattr(part, 'name', None) or choice(part)}": part.packages
            for group, part in parts.items()
            if hasattr(part, "packages")
        }

    def reads(self, group: str) -> bool:
        """Whether the stage's result depends on a group: on all of them, where the stage does not say."""
        return group in getattr(self.stage, "reads", GROUPS)

    def deciding(self) -> dict[str, Any]:
        """The part of the config that decides the result: not where things lie or are written, and who is told.

        A spec names its own places in `locations`. The data and weights that lie there have hashes of their own.
        """
        few = hasattr(self.stage, "reads")
        keys = ("stage", *self.stage.reads) if few else [key for key in self.config if key not in NOT_DECIDING]
        if self.solver.solve is None:  # no part of an experiment that solves nothing
            keys = [key for key in keys if key != "solver"]
        return {key: self._deciding(key) for key in keys}

    def config_sha256(self) -> str:
        """Hash of what decides the result."""
        return hash_of(filled(self.deciding(), ""))

    def _deciding(self, key: str) -> Any:
        locations = getattr(getattr(self, key), "locations", ()) if key in GROUPS else ()
        if not locations:
            return self.config[key]
        return {name: value for name, value in self.config[key].items() if name not in locations}


def hash_of(deciding: Mapping[str, Any]) -> str:
    """The hash that receipts hold of a config's deciding part."""
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def stage_of(config: Mapping[str, Any]) -> Any:
    """The stage of a composed config, before anything else of it is looked at. Raises UserError."""
    _check_keys(config)
    return _part(config, "stage", GROUPS["stage"])


def place_of(config: Mapping[str, Any]) -> tuple[Any, Device, Precision]:
    """Backend, device and precision of a composed config, before anything else of it is looked at. Raises UserError."""
    _check_keys(config)
    backend, device, precision = (_part(config, key, GROUPS[key]) for key in ("backend", "device", "precision"))
    return backend, device, precision


def load(config: Mapping[str, Any]) -> Experiment:
    """Build the experiment of a composed config, each group checked by itself. Imports no framework. Raises UserError.

    Whether the groups go together, `pipeline.runner.load_checked` checks.
    """
    config = {**SINCE, **config}
    _check_keys(config)
    parts = {key: _part(config, key, wanted) for key, wanted in GROUPS.items()}
    settings = build_as(Settings, {key: value for key, value in config.items() if key not in GROUPS}, "")
    return Experiment(config=config, settings=settings, **parts)


def check_run(experiment: Experiment) -> None:
    """Refuse a saved run where the stage starts from none. Raises UserError."""
    if experiment.settings.run and not experiment.stage.starts_from_run:
        raise UserError(
            f"run={experiment.settings.run} with stage={choice(experiment.stage)}: this stage starts from no run; "
            "stage=evaluate and stage=predict do"
        )


def check_training(experiment: Experiment) -> None:
    """Check what no single group of a classifier's training can know.

    Raises UserError, and Impossible for choices that do not go together.
    """
    backend = experiment.backend.name
    trains = not experiment.stage.starts_from_run  # a saved run's loader, optimizer and loss have done their work
    if trains and backend not in experiment.loader.backends:
        feeds = ", ".join(experiment.loader.backends)
        raise Impossible(
            f"loader={choice(experiment.loader)} with backend={backend}: this loader feeds {feeds}; "
            "loader=memory and loader=threads feed every backend"
        )
    for key in ("model", "optimizer", "loss") if trains else ("model",):
        part = getattr(experiment, key)
        if not hasattr(part, experiment.backend.builder):
            raise Impossible(
                f"{key}={choice(part)} with backend={backend}: {type(part).__name__} has no "
                f"{experiment.backend.builder}() builder; choose another backend or another {key}"
            )
    _check_profiler(experiment, trains)
    if not hasattr(experiment.loss, "numpy"):
        raise UserError(
            f"loss={choice(experiment.loss)}: {type(experiment.loss).__name__} has no numpy() function, by which the "
            "loss of the test set is measured; choose another loss"
        )
    if any(getattr(experiment.model, "layer_dtypes", ())) and experiment.precision.name != "fp32":
        raise Impossible(
            f"model.layer_dtypes with precision={experiment.precision.name}: layers with dtypes of their own need a "
            "precision that leaves the others alone; use precision=fp32"
        )


def _check_profiler(experiment: Experiment, trains: bool) -> None:
    profiler, name = experiment.profiler, choice(experiment.profiler)
    if name == "none":
        return
    if not trains or not experiment.stage.recorded:
        stage = choice(experiment.stage)
        raise UserError(f"profiler={name} with stage={stage}: looks into a training, and this stage trains nothing")
    if experiment.backend.name not in profiler.backends:
        raise Impossible(
            f"profiler={name} with backend={experiment.backend.name}: it is for {', '.join(profiler.backends)} "
            f"({profiler.instead})"
        )


def _check_keys(config: Mapping[str, Any]) -> None:
    names = [field.name for field in fields(Settings)]
    for key in config:
        if key not in names and key not in GROUPS:
            raise bad_key(str(key), [*names, *GROUPS])


def _part(config: Mapping[str, Any], key: str, wanted: type[Any]) -> Any:
    node = config.get(key)
    if not isinstance(node, Mapping):
        raise UserError(f"{key}={shown(node)}: needs one of the choices of conf/{key}/")
    part = build(node, key, KINDS.get(key))
    if not isinstance(part, wanted):
        raise UserError(f"{key}._target_={node['_target_']}: must be {wanted.__module__}.{wanted.__name__}")
    return part
