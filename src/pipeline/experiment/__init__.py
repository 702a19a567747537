"""An experiment: everything that decides a result, built once from the composed config and never changed after."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import zip_longest
from typing import TypeVar

from pipeline.contracts import (
    Augmentation,
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
)
from pipeline.contracts.physics import Network, Problem, Solver
from pipeline.contracts.runs import AboutRuns
from pipeline.errors import UserError, bad_choice, bad_key, shown
from pipeline.experiment.settings import Inputs, Settings, Starting, Sweep
from pipeline.experiment.training import Training
from pipeline.machine.device import Device
from pipeline.machine.precision import Precision
from pipeline.spec import Config, build, build_as, choice
from pipeline.variables import filled

# The config groups, and the contracts of which a choice fulfils one.
GROUPS: dict[str, tuple[type[Part], ...]] = {
    "stage": (Stage,),
    "backend": (Backend,),
    "device": (Device,),
    "precision": (Precision,),
    "model": (Model, Network),
    "dataset": (Dataset, Problem),
    "loader": (Loader,),
    "augmentation": (Augmentation,),
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
    "augmentation": {"_target_": "pipeline.augmentations.none.Off"},
}

# The keys that every choice of a group has, whoever wrote it; those that are unset do not decide the result.
Keys = TypeVar("Keys")
COMMON: dict[str, type] = {"model": Starting, "dataset": Inputs}

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
    inputs: Inputs
    loader: Loader
    augmentation: Augmentation
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

    def kinds_of_update(self, shapes: Mapping[str, tuple[int, ...]], outputs: int) -> dict[str, str]:
        """By an optimizer with several, of each weight, frozen or not. `outputs`: numbers on the output's last axis."""
        return self.optimizer.kinds(shapes, None if self.data_model.tied else outputs)

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def name(self) -> str:
        """The run's name: the one given, or model (of a problem: solver), dataset, backend and precision, after the
        stage's name unless it trains."""
        if self.settings.name:
            return self.settings.name
        if title := self.stage.title(self):
            return title
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
        found = {f"{group}={_called(part)}": part.packages for group, part in parts.items()}
        found |= {f"{group}: {_called(one)}": one.packages for group, part in parts.items() for one in part.inside}
        if self.inputs.folds is not None:
            found["dataset.folds"] = ("scikit-learn",)  # which divides the examples
        return {what: packages for what, packages in found.items() if packages}

    def reads(self, group: str) -> bool:
        """Whether the stage's result depends on a group: on all of them, where the stage does not say."""
        return group in (GROUPS if self.stage.reads is None else self.stage.reads)

    def deciding(self) -> dict[str, object]:
        """The part of the config that decides the result: not the folders, the profiler, the tracker.

        A spec names its own places in `locations`. The data and weights that lie there have hashes of their own.
        """
        return dict(self._decides)

    @cached_property  # a grid asks for it three times for each of its cells
    def _decides(self) -> dict[str, object]:
        keys = [key for key in self.config if key not in NOT_DECIDING]
        if self.stage.reads is not None:
            keys = ["stage", *self.stage.reads]
        if not self.solver.active:  # no part of an experiment that solves nothing
            keys = [key for key in keys if key != "solver"]
        if not self.augmentation.active:
            keys = [key for key in keys if key != "augmentation"]
        return {key: self._deciding(key) for key in keys}

    def config_sha256(self, without: Collection[str] = ()) -> str:
        """Hash of what decides the result, `without` some keys of it."""
        deciding = {key: value for key, value in self.deciding().items() if key not in without}
        return hash_of(filled(deciding, ""))

    def _deciding(self, key: str) -> object:
        locations = self.part(key).locations if key in GROUPS else ()
        if key == "device":  # as in runs from before there could be several
            locations = (*locations, *(name for name in ("processes", "split") if getattr(self.device, name) == 1))
        if key in COMMON:
            locations = (*locations, *(name for name in _names(COMMON[key]) if not is_set(self.config[key].get(name))))
        if key not in GROUPS:
            return self.config[key]
        built = vars(self.part(key)) | {"model": vars(self.starting), "dataset": vars(self.inputs)}.get(key, {})
        return {
            name: _as_float(value, built.get(name)) for name, value in self.config[key].items() if name not in locations
        }


def _called(part: Part) -> str:
    """A part by its choice; the backends share a module and have names."""
    return part.name if isinstance(part, Backend) else choice(part)


def hash_of(deciding: Mapping[str, object]) -> str:
    """The hash that receipts hold of a config's deciding part."""
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()


def stage_of(config: Config) -> Stage:
    """The stage of a composed config, before anything else of it is looked at. Raises UserError."""
    about_runs = about_runs_of(config)
    if about_runs is not None:
        raise UserError(
            f"stage={choice(about_runs)}: works on saved runs, not on an experiment; run it alone, without -m"
        )
    stage: Stage = build(_node(config, "stage"), "stage", GROUPS["stage"])
    for key in stage.reads or ():
        if key not in config:
            raise bad_choice(f"stage={choice(stage)}: reads", key, [one for one in config if one not in NOT_DECIDING])
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
    """The keys of the top level that are not groups. Raises UserError."""
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

    Whether the groups go together, checks.py says.
    """
    config = {**SINCE, **config}
    _check_keys(config)
    stage_of(config)
    nodes = {key: dict(_node(config, key)) for key in GROUPS}
    starting, inputs = _taken(nodes["model"], "model", Starting), _taken(nodes["dataset"], "dataset", Inputs)
    parts = {key: build(nodes[key], key, contracts) for key, contracts in GROUPS.items()}
    for group in COMMON:
        _check_names(parts[group], group)
    return Experiment(config=config, settings=settings_of(config), starting=starting, inputs=inputs, **parts)


def _as_float(value: object, built: object) -> object:
    """A plain value with floats where the spec that is built of it has them: 1 and 1.0 are one setting, of one hash."""
    if type(value) is int and type(built) is float:
        return float(value)
    if isinstance(value, Mapping):
        inside = built if isinstance(built, Mapping) else getattr(built, "__dict__", {})
        return {name: _as_float(item, inside.get(name)) for name, item in value.items()}
    if isinstance(value, list) and isinstance(built, tuple):
        return [_as_float(item, one) for item, one in zip_longest(value, built)]
    return value


def is_set(value: object) -> bool:
    """Whether a setting says anything, not null, false, 0 or empty: of a node, whether one of its keys does."""
    return any(map(is_set, value.values())) if isinstance(value, Mapping) else bool(value)


def _names(keys: type) -> list[str]:
    return [field.name for field in fields(keys)]


def _taken(node: dict[str, object], group: str, keys: type[Keys]) -> Keys:
    """The keys that every choice of a group has, taken out of its node. Raises UserError."""
    return build_as(keys, {name: node.pop(name) for name in _names(keys) if name in node}, group)


def _check_names(part: Part, group: str) -> None:
    """Refuse a spec of a user's that has such a key as its own field: it would never be set. Raises UserError."""
    for name in _names(COMMON[group]):
        if name in getattr(type(part), "__dataclass_fields__", ()):
            raise UserError(
                f"{group}={choice(part)}: {type(part).__name__} has a field {name}, and {group}.{name} is a key that "
                f"every {group} has; call the field something else"
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
