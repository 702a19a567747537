"""Whether a search can ask for a metric, and for that end of it: known of a training before its first trial."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.contracts import Dataset
from pipeline.errors import UserError, bad_choice
from pipeline.experiment.metrics import name_of
from pipeline.spec import choice

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

TRAININGS = ("classifier", "train", "seq2seq")  # stages whose metrics their task and their config name
MORE = ("epoch", "loss_scale", "profiler")  # the first part of what else a training may measure
ENDS = {"min": ("less", "minimize"), "max": ("more", "maximize")}


def check_sought(sought: Mapping[str, str], experiment: Experiment) -> None:
    """Refuse a metric that no trial will have, or its wrong end. `sought`: directions by metric. Raises UserError."""
    known = _known(experiment)
    for name, direction in sought.items():
        if known and name not in known and name.partition("/")[0] not in MORE:
            raise bad_choice("hydra.sweeper.metric", name, known)
        check_direction(name, direction, getattr(known.get(name), "direction", known.get(name)))


def check_direction(name: str, direction: str, declared: str | None) -> None:
    """Refuse to look for the worst of a metric. Raises UserError."""
    better, wanted = ENDS.get(declared or "", ("", direction))
    if direction != wanted:
        raise UserError(
            f"hydra.sweeper.direction={direction} with hydra.sweeper.metric={name}: {better} is better; "
            f"use hydra.sweeper.direction={wanted}"
        )


def _known(experiment: Experiment) -> dict[str, Any]:
    """What a training of ours measures: by name its direction, or the metric that declares it. Else nothing."""
    stage, dataset = experiment.stage, experiment.dataset
    if not isinstance(dataset, Dataset) or not type(stage).__module__.startswith("pipeline."):
        return {}
    task = dataset.task
    if choice(stage) not in TRAININGS or not task.tested:
        return {}
    found: dict[str, Any] = {f"{task.unit}_per_s": "max", "train/learning_rate": "none", "train/gradient_norm": "none"}
    for part in ("train", "validation"):
        found |= {f"{part}/loss": "min"} | ({} if task.score is None else {f"{part}/{task.score}": task.better})
    found |= {f"test/{name}": direction for name, direction in task.tested.items()}
    return found | {f"test/{name_of(metric)}": metric for metric in experiment.training.metrics}
