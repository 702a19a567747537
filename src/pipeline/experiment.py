"""An experiment: everything that decides a result, built once from the composed config and never changed after."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from pipeline.contracts import (
    Backend,
    Dataset,
    Loader,
    Loss,
    Model,
    Optimizer,
    Part,
    Profiler,
    Schedule,
    Stage,
    Tracking,
    defines,
)
from pipeline.contracts.physics import Network, Problem, Solver
from pipeline.contracts.runs import AboutRuns
from pipeline.errors import Impossible, UserError, bad_choice, bad_key, cut, shown
from pipeline.machine.device import Device
from pipeline.machine.precision import Precision
from pipeline.spec import Config, build, build_as, choice, spec
from pipeline.variables import filled


@spec
class Checkpoints:
    """When a training keeps what it needs to go on after it was killed. None of it changes a bit of the result.

    `every`: optimizer steps between two checkpoints; `every_s`: seconds (0: none). `keep`: how many stay. `strict`:
    whether another machine, another version or other code refuses to go on from one.
    """

    every: PositiveInt | None = None
    every_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    keep: PositiveInt = 2
    strict: bool = True


def _checkpoints(value: object) -> object:
    return build_as(Checkpoints, value, "training.checkpoint") if isinstance(value, Mapping) else value


@spec
class Training(Part):
    """How long and in what portions to train.

    `steps`: optimizer steps, in place of epochs where set. `accumulate`: batches whose gradients make one step.
    `validate_every`: optimizer steps between validations (None: an epoch). `max_time`: seconds of wall time after which
    training ends. `clip_norm`, `clip_value`: bounds of the gradient's norm and of each of its numbers.
    `log_gradient_norm`: note the norm before clipping. `ema`: decay of an exponential moving average of the weights,
    which is validated and saved in their place. `monitor`: what `patience` and `weights` judge a validation by.
    `patience`: validations without a better one after which training ends. `weights`: those of the last step or of the
    best validation.
    `log_every_n_steps`: one point in the journal is the mean over that many steps. `metrics`: of the test set, to
    report beside loss and score. `evaluation_batch_size`: examples per step where nothing is learned.
    """

    locations: ClassVar[tuple[str, ...]] = ("checkpoint",)

    epochs: Annotated[int, Field(gt=0, le=1_000_000)] = 10
    steps: PositiveInt | None = None
    batch_size: PositiveInt = 32
    accumulate: PositiveInt = 1
    validate_every: PositiveInt | None = None
    max_time: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    clip_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    clip_value: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    log_gradient_norm: bool = False
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    monitor: str = "validation/loss"
    patience: PositiveInt | None = None
    weights: Literal["last", "best"] = "last"
    checkpoint: Annotated[Checkpoints, BeforeValidator(_checkpoints)] = Field(default_factory=Checkpoints)
    log_every_n_steps: PositiveInt = 10
    metrics: tuple[str, ...] = ()
    evaluation_batch_size: PositiveInt = 1000

    def __post_init__(self) -> None:
        if len(set(self.metrics)) < len(self.metrics):
            raise UserError(f"training.metrics=[{','.join(self.metrics)}]: one of them is named twice")

    @property
    def validations(self) -> int | None:
        """How many there are at most; None where that takes the size of the training set to say."""
        if self.steps is None and self.validate_every is None:
            return self.epochs
        if self.steps is None or self.validate_every is None:
            return None
        return -(-self.steps // self.validate_every)

    @property
    def needs_norm(self) -> bool:
        """Whether a step measures its gradient's norm."""
        return self.log_gradient_norm or self.clip_norm is not None

    @property
    def validates_for(self) -> str | None:
        """The key that needs validation, if any does."""
        if self.patience is not None:
            return f"training.patience={self.patience}"
        return "training.weights=best" if self.weights == "best" else None


def _text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]  # a name made of digits is a number to YAML


@spec
class Settings:
    """The keys of the top level that are no group."""

    name: Text | None = None
    seed: NonNegativeInt = Field(default=0, lt=2**32)
    run: Text | None = None
    resume: Text | None = None
    output_dir: str = "runs"

    def __post_init__(self) -> None:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", self.name):
            raise UserError(f"name={cut(self.name)}: use letters, digits, '.', '_' and '-', 60 at the most")
        if self.name is not None and not self.name.strip("."):
            raise UserError(f"name={self.name}: use something besides dots")
        if not self.output_dir:
            raise UserError("output_dir=: name a folder; every run gets its own folder in it")


@spec
class Starting:
    """The keys of the group `model` that every model has, whoever wrote it.

    `start`: a file of weights to start from (a run, before the config is checked). `start_layers`: patterns of the
    weights that are taken from it (none: all). `freeze`: patterns of the weights that stay as they start.
    """

    start: Text | None = None
    start_layers: tuple[Text, ...] = ()
    freeze: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        if self.start_layers and self.start is None:
            layers = ",".join(self.start_layers)
            raise UserError(f"model.start_layers=[{layers}]: without model.start; name a run or a file there")


@spec
class Sweep(Part):
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


# The config groups, and the contracts of which a choice fulfils one.
GROUPS: dict[str, tuple[type[Part], ...]] = {
    "stage": (Stage,),
    "backend": (Backend,),
    "device": (Device,),
    "precision": (Precision,),
    "model": (Model, Network),
    "dataset": (Dataset, Problem),
    "loader": (Loader,),
    "optimizer": (Optimizer,),
    "loss": (Loss,),
    "schedule": (Schedule,),
    "solver": (Solver,),
    "training": (Training,),
    "profiler": (Profiler,),
    "tracking": (Tracking,),
    "sweep": (Sweep,),
}

# Groups that the runs saved before they existed do not have.
SINCE = {
    "solver": {"_target_": "pipeline.pinn.solvers.none.Off"},
    "schedule": {"_target_": "pipeline.schedules.constant.Constant"},
}

STARTING = tuple(field.name for field in fields(Starting))  # of the group `model`; where unset, no part of the config

# Keys that say what a run is called, where things lie, which profiler and tracker watch it, and how cells are run.
NOT_DECIDING = ("name", "run", "resume", "output_dir", "profiler", "tracking", "sweep")


ABOUT_RUNS = "pipeline.stages.about_runs."  # the folder of those of our stages for which no experiment is built


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The checked config. `config` is the same as plain data: what is written, hashed and rebuilt from."""

    config: Config
    settings: Settings
    stage: Stage
    backend: Backend
    device: Device
    precision: Precision
    model: Model | Network
    starting: Starting
    dataset: Dataset | Problem
    loader: Loader
    optimizer: Optimizer
    loss: Loss
    schedule: Schedule
    solver: Solver
    training: Training
    profiler: Profiler
    tracking: Tracking
    sweep: Sweep

    def part(self, group: str) -> Part:
        """The choice of a group."""
        found = getattr(self, group)
        assert isinstance(found, Part)
        return found

    @property
    def data_model(self) -> Model:
        """The model, of an experiment with a dataset."""
        assert isinstance(self.model, Model)
        return self.model

    @property
    def data_source(self) -> Dataset:
        """The dataset, of an experiment that has no problem instead."""
        assert isinstance(self.dataset, Dataset)
        return self.dataset

    @property
    def network(self) -> Network:
        """The model, of an experiment with a problem."""
        assert isinstance(self.model, Network)
        return self.model

    @property
    def problem(self) -> Problem:
        """The problem, of an experiment that has one in the place of a dataset."""
        assert isinstance(self.dataset, Problem)
        return self.dataset

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
        if self.stage.user_code:  # the user's own model and data
            made = self.stage.user_code[0].rpartition(".")[2].lower()
            return f"{stage}-{made}-{self.backend.name}-{self.precision.name}"
        by = choice(self.solver) if self.solver.active else choice(self.model)
        name = f"{by}-{dataset}-{self.backend.name}"
        if not self.stage.varies_precision:
            name += f"-{self.precision.name}"
        return name if stage in ("classifier", "train") else f"{stage}-{name}"

    @property
    def packages(self) -> tuple[str, ...]:
        """Whose versions have a part in the result: those that the specs name in `packages`."""
        return tuple(dict.fromkeys(name for names in self.needs.values() for name in names))

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """The distributions that each part names in `packages`, the backend's first, by `group=choice`."""
        read = ("backend", *(group for group in GROUPS if group == "stage" or self.reads(group)))
        parts = {group: self.part(group) for group in dict.fromkeys(read)}
        names = {group: part.name if isinstance(part, Backend) else choice(part) for group, part in parts.items()}
        return {f"{group}={names[group]}": part.packages for group, part in parts.items() if part.packages}

    def reads(self, group: str) -> bool:
        """Whether the stage's result depends on a group: on all of them, where the stage does not say."""
        return group in (GROUPS if self.stage.reads is None else self.stage.reads)

    def deciding(self) -> dict[str, object]:
        """The part of the config that decides the result: not the folders, the profiler, the tracker.

        A spec names its own places in `locations`. The data and weights that lie there have hashes of their own.
        """
        keys = [key for key in self.config if key not in NOT_DECIDING]
        if self.stage.reads is not None:
            keys = ["stage", *self.stage.reads]
        if not self.solver.active:  # no part of an experiment that solves nothing
            keys = [key for key in keys if key != "solver"]
        return {key: self._deciding(key) for key in keys}

    def config_sha256(self) -> str:
        """Hash of what decides the result."""
        return hash_of(filled(self.deciding(), ""))

    def _deciding(self, key: str) -> object:
        locations = self.part(key).locations if key in GROUPS else ()
        if key == "model":
            locations = (*locations, *(name for name in STARTING if not self.config[key].get(name)))
        if not locations:
            return self.config[key]
        return {name: value for name, value in self.config[key].items() if name not in locations}


def hash_of(deciding: Mapping[str, object]) -> str:
    """The hash that receipts hold of a config's deciding part."""
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def stage_of(config: Config) -> Stage:
    """The stage of a composed config, before anything else of it is looked at. Raises UserError."""
    about_runs = about_runs_of(config)
    if about_runs is not None:
        raise UserError(f"stage={choice(about_runs)}: is about saved runs and no experiment; run it alone, without -m")
    stage: Stage = build(_node(config, "stage"), "stage", GROUPS["stage"])
    return stage


def about_runs_of(config: Config) -> AboutRuns | None:
    """The stage of a composed config where it is about saved runs; None for any other. Raises UserError.

    Ours lie in one folder: any other stage of ours imports NumPy, which a refusal can do without.
    """
    _check_keys(config)
    node = _node(config, "stage")
    target = str(node.get("_target_"))
    if target.startswith("pipeline.") and not target.startswith(ABOUT_RUNS):
        return None
    stage = build(node, "stage", (*GROUPS["stage"], AboutRuns))
    return stage if isinstance(stage, AboutRuns) else None


def settings_of(config: Config) -> Settings:
    """The keys of the top level that are no group. Raises UserError."""
    return build_as(Settings, {key: value for key, value in config.items() if key not in GROUPS}, "")


def place_of(config: Config) -> tuple[Backend, Device, Precision]:
    """Backend, device and precision of a composed config, before anything else of it is looked at. Raises UserError."""
    _check_keys(config)
    backend, device, precision = (
        build(_node(config, key), key, GROUPS[key]) for key in ("backend", "device", "precision")
    )
    return backend, device, precision


def load(config: Config) -> Experiment:
    """Build the experiment of a composed config, each group checked by itself. Imports no framework. Raises UserError.

    Whether the groups go together, `pipeline.runner.load_checked` checks.
    """
    config = {**SINCE, **config}
    _check_keys(config)
    stage_of(config)
    nodes = {key: dict(_node(config, key)) for key in GROUPS}
    starting = build_as(Starting, {key: nodes["model"].pop(key) for key in STARTING if key in nodes["model"]}, "model")
    parts = {key: build(nodes[key], key, contracts) for key, contracts in GROUPS.items()}
    return Experiment(config=config, settings=settings_of(config), starting=starting, **parts)


def check_run(experiment: Experiment) -> None:
    """Refuse a saved run where the stage starts from none. Raises UserError."""
    if experiment.settings.run and not experiment.stage.starts_from_run:
        raise UserError(
            f"run={experiment.settings.run} with stage={choice(experiment.stage)}: this stage starts from no run; "
            "stage=evaluate, predict and export do"
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
    built: dict[str, Part] = {"model": experiment.model}
    if trains:
        built |= {"optimizer": experiment.optimizer, "loss": experiment.loss}
    for key, part in built.items():
        if not defines(part, GROUPS[key][0], experiment.backend.builder):
            raise Impossible(
                f"{key}={choice(part)} with backend={backend}: {type(part).__name__} has no "
                f"{experiment.backend.builder}() builder; choose another backend or another {key}"
            )
    _check_task(experiment)
    _check_profiler(experiment, trains)
    if any(experiment.data_model.layer_dtypes) and experiment.precision.name != "fp32":
        raise Impossible(
            f"model.layer_dtypes with precision={experiment.precision.name}: layers with dtypes of their own need a "
            "precision that leaves the others alone; use precision=fp32"
        )


def _check_task(experiment: Experiment) -> None:
    """That the stage trains on what the dataset holds, and that its task knows the metrics. Raises UserError."""
    task, wanted = experiment.data_source.task, experiment.stage.task
    if wanted is not None and not issubclass(task, wanted):
        raise UserError(
            f"dataset={choice(experiment.dataset)} with stage={choice(experiment.stage)}: its task is "
            f"{task.__name__}, not {wanted.__name__}; use stage=train"
        )
    for name in experiment.training.metrics:
        if name not in task.metrics:
            raise bad_choice("training.metrics", name, task.metrics)


def _check_profiler(experiment: Experiment, trains: bool) -> None:
    profiler, name = experiment.profiler, choice(experiment.profiler)
    if not profiler.active:
        return
    if not trains or not experiment.stage.recorded:
        stage = choice(experiment.stage)
        raise UserError(f"profiler={name} with stage={stage}: measures a training, and this stage trains nothing")
    if experiment.backend.name not in profiler.backends:
        raise Impossible(
            f"profiler={name} with backend={experiment.backend.name}: it is for {', '.join(profiler.backends)} "
            f"({profiler.instead})"
        )


def _check_keys(config: Config) -> None:
    names = [field.name for field in fields(Settings)]
    for key in config:
        if key not in names and key not in GROUPS:
            raise bad_key(str(key), [*names, *GROUPS])


def _node(config: Config, key: str) -> Config:
    node = config.get(key)
    if not isinstance(node, Mapping):
        raise UserError(f"{key}={shown(node)}: needs one of the choices of conf/{key}/")
    return node
