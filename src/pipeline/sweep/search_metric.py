"""Whether a sweep can ask for a metric and for that end of it, known before a run; and the value that a run has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.contracts import Dataset
from pipeline.datasets import other
from pipeline.errors import UserError, bad_choice
from pipeline.experiment.metrics import name_of
from pipeline.experiment.settings import Sought
from pipeline.runs.better import ENDS, check_direction
from pipeline.runs.judged_on import OTHER_DATA
from pipeline.runs.peaks import PEAKS
from pipeline.runs.records import EPOCH, read_metrics
from pipeline.runs.result import by_name, metrics_of, read_result
from pipeline.spec import choice, is_shipped

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.experiment.settings import Sweep

TRAININGS = ("classifier", "train", "seq2seq")  # stages whose metrics their task and their config name
EVALUATION = "evaluate"
MORE = ("epoch", "loss_scale", "profiler")  # the first part of what else a training may measure


def directions_of(metrics: Sequence[str], given: Sequence[Sought] | None, experiment: Experiment) -> tuple[Sought, ...]:
    """Which end of each metric is sought: what is `given`, else what the metric declares.

    Raises UserError for a metric that no trial will have, its wrong end, or where nothing says which end is better.
    """
    known = _known(experiment)
    for name in metrics:
        if known and name not in known and name.partition("/")[0] not in MORE:
            raise bad_choice("hydra.sweeper.metric", name, known)
    declared = [_end(known.get(name)) for name in metrics]
    if given is None:
        return tuple(_declared(name, one, len(metrics)) for name, one in zip(metrics, declared, strict=True))
    for name, direction, one in zip(metrics, given, declared, strict=True):
        check_direction("hydra.sweeper.metric", name, direction, one)
    return tuple(given)


def usual_metric(experiment: Experiment) -> str:
    """What a search judges by where no metric is given: the task's score on the validation data, else the loss; of an
    evaluation that of what it measures, and of a stage that has no such metric its headline.

    Raises UserError for an experiment without a dataset.
    """
    stage, dataset = experiment.stage, experiment.dataset
    if not stage.headline.startswith("test/"):
        return stage.headline
    if not isinstance(dataset, Dataset):
        raise UserError("hydra.sweeper.metric=null: nothing says what trials are judged by; name a metric")
    return f"{_evaluated(experiment) or 'validation'}/{dataset.task.score or 'loss'}"


def check_every_epoch(name: str, pruner: str, experiment: Experiment) -> None:
    """Refuse a pruner that would look for a metric after each epoch that is measured at the end alone."""
    dataset = experiment.dataset
    if not isinstance(dataset, Dataset) or not is_shipped(experiment.stage):
        return
    of_epochs = [f"validation/{one}" for one in ("loss", dataset.task.score) if one is not None]
    if name.partition("/")[0] in ("validation", "test") and name not in of_epochs:
        raise UserError(
            f"hydra.sweeper.metric={name} with hydra.sweeper.pruner={pruner}: is measured at the end of a training, "
            f"and a pruner asks after each epoch; choose from {', '.join(of_epochs)}, or hydra.sweeper.pruner=none"
        )


def _declared(name: str, declared: str, metrics: int) -> Sought:
    if declared in ENDS:
        return ENDS[declared][1]
    words = "maximize or minimize" if metrics == 1 else "[maximize or minimize for each metric]"
    raise UserError(
        f"hydra.sweeper.metric={name}: nothing declares before the first trial whether more or less is better; "
        f"give hydra.sweeper.direction={words}"
    )


def check_best(settings: Sweep, experiments: Iterable[Experiment]) -> None:
    """Refuse a grid's `sweep.best` that no cell will have, or its wrong end. Raises UserError."""
    name, known = settings.best, dict[str, Any]()
    for experiment in experiments if name is not None else ():
        found = _known(experiment)
        if not found or name in found or str(name).partition("/")[0] in MORE:
            known = found
            break
        known |= found
    if name is not None and known and name not in known and name.partition("/")[0] not in MORE:
        raise bad_choice("sweep.best", name, known)
    if name is not None and settings.direction is not None:
        check_direction("sweep.best", name, settings.direction, _end(known.get(name)))


def _end(declared: Any) -> str:
    """The direction, or that of the metric which declares it."""
    return str(getattr(declared, "direction", declared))


def _known(experiment: Experiment) -> dict[str, Any]:
    """What a training of ours, or an evaluation of a run's own data, measures: by name its direction, or the metric
    that declares it. Else nothing."""
    stage, dataset = experiment.stage, experiment.dataset
    if not isinstance(dataset, Dataset) or not is_shipped(stage):
        return {}
    task = dataset.task
    tested: dict[str, Any] = {f"test/{name}": direction for name, direction in task.tested.items()}
    tested |= {f"test/{name_of(metric)}": metric for metric in experiment.training.metrics}
    if _evaluated(experiment) == "test" and task.tested:
        return tested
    if choice(stage) not in TRAININGS or not task.tested:
        return {}
    units = (task.unit,) if isinstance(task.unit, str) else task.may_count  # by the class: no example is read yet
    found: dict[str, Any] = {
        **{f"{unit}_per_s": "max" for unit in units},
        **dict.fromkeys(PEAKS, "min"),
        "train/learning_rate": "none",
        "train/gradient_norm": "none",
    }
    for part in ("train", "validation"):
        found |= {f"{part}/loss": "min"} | ({} if task.score is None else {f"{part}/{task.score}": task.better})
    return found | tested


def _evaluated(experiment: Experiment) -> str | None:
    """Which examples an evaluation of a saved run measures; None of another stage, whose trainings have a validation.

    That other data are the run's own all the same, and are then called so, is known when they have been read.
    """
    if choice(experiment.stage) != EVALUATION or not isinstance(experiment.dataset, Dataset):
        return None
    return "test" if other.named(experiment) is None else OTHER_DATA


def value_of(run: Path, name: str, direction: Sought) -> float:
    """A metric of a finished run: of its result or, of an epoch, of the weights that it kept; else the last that its
    journal has. Raises UserError."""
    result = read_result(run)
    metrics = (by_name(result.last_epoch) if result else {}) | metrics_of(run)
    if name in metrics:
        check_direction("hydra.sweeper.metric", name, direction, metrics[name].direction)
        return metrics[name].value
    logged = {key: value for record in read_metrics(run) for key, value in record.metrics.items()}
    if name not in logged:
        known = ", ".join(sorted({*metrics, *logged} - {EPOCH}))
        raise UserError(f"hydra.sweeper.metric={name}: a run has no such metric; choose from {known}")
    return logged[name]
