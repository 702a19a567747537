"""Whether the groups of an experiment go together: what no single group can know."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

from pipeline.contracts import Loss, Part, Schedule, defines
from pipeline.errors import Impossible, UserError, bad_choice, plural, shown
from pipeline.experiment import GROUPS, Experiment
from pipeline.experiment.folds import check_folds
from pipeline.experiment.metrics import KEY, is_judges, name_of, renamed_by, words
from pipeline.raised import in_words
from pipeline.spec import choice

if TYPE_CHECKING:
    from pipeline.experiment.training import Training

# One for each kind of example.
DATASETS = {"tokens": "moby_dick", "numbers": "digits", "pairs of sequences": "reversals"}
STAGES = {"tokens": "transformer", "numbers": "classifier", "pairs of sequences": "seq2seq"}
MODELS = {"tokens": "gpt", "numbers": "mlp", "pairs of sequences": "encoder_decoder"}
LOSSES = {"classes": "cross_entropy", "numbers": "squared_error"}  # for each kind of target
STEPS_TRIED = 200  # of a schedule, from end to end: all of them where the training has fewer than twice as many
# For each task that a stage is for: such a stage, and a dataset. For any other there is stage=train.
OF_TASK = {
    "Classification": ("stage=classifier", "digits"),
    "LanguageModelling": ("stage=transformer", "moby_dick"),
    "Recall": ("stage=long_range", "recall"),
    "SequenceToSequence": ("stage=seq2seq", "reversals"),
}


def check_run(experiment: Experiment) -> None:
    """Refuse a saved run where the stage starts from none. Raises UserError."""
    if experiment.settings.run and not experiment.stage.starts_from_run:
        raise UserError(
            f"run={experiment.settings.run} with stage={choice(experiment.stage)}: this stage does not start from a "
            "saved run; stage=evaluate, predict, inference, export and generate do"
        )


def check_processes(experiment: Experiment) -> None:
    """Refuse several processes, or devices, where something would not be done by all of them. Raises UserError."""
    device, backend = experiment.device, experiment.backend
    keys = [f"device.{key}={value}" for key in ("processes", "split") if (value := getattr(device, key)) > 1]
    if not keys or experiment.stage.starts_from_run:  # which is over: what is left is one process's work
        return
    asked = f"{' '.join(keys)} with"
    if not experiment.stage.distributes:
        others = "stage=train, classifier, transformer and seq2seq train in several"
        raise UserError(
            f"{asked} stage={choice(experiment.stage)}: it works in one process; "
            f"{'leave it out' if experiment.stage.solves else others}"  # none of them takes a problem
        )
    if device.split > 1 and not backend.shards:
        raise Impossible(f"{asked} backend={backend.name}: it keeps whole weights on each device; use backend=jax")
    if not (backend.distributes or backend.shards):
        raise Impossible(
            f"{asked} backend={backend.name}: it trains in one process, on one device; use backend=torch or backend=jax"
        )
    if experiment.stage.probe:
        raise UserError(f"{asked} stage.probe=true: it measures a step of one process alone; leave one of them out")
    if experiment.profiler.active:
        raise Impossible(
            f"{asked} profiler={choice(experiment.profiler)}: it would measure one process, which waits for the "
            "others; use profiler=none"
        )
    if backend.distributes:
        _check_each_process(experiment, asked)


def _check_each_process(experiment: Experiment, asked: str) -> None:
    """Refuse what a process among several does not do for its part of a batch. Raises Impossible."""
    if not experiment.loader.distributes:
        raise Impossible(
            f"{asked} loader={choice(experiment.loader)}: this loader makes the whole batch in each process; "
            "loader=memory and loader=threads make its part alone"
        )
    if experiment.backend.compile:
        raise Impossible(f"{asked} backend.compile=true: a compiled step exchanges no gradients; leave one of them out")


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
    if trains and experiment.augmentation.active and not experiment.loader.augments:
        raise Impossible(
            f"augmentation={choice(experiment.augmentation)} with loader={choice(experiment.loader)}: this loader does "
            "not augment; use loader=memory, or in a loader of yours take the batches from data.training(rows, epoch) "
            "and set augments = True"
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
    if experiment.inputs.folds is not None:
        check_folds(experiment, f"dataset.folds={experiment.inputs.folds}")
    if trains:
        check_monitor(experiment.training, experiment.data_source.task.score)
        check_schedule(experiment, experiment.training.steps)
    _check_profiler(experiment, trains)
    if any(experiment.data_model.layer_dtypes) and experiment.precision.name != "fp32":
        raise Impossible(
            f"model.layer_dtypes with precision={experiment.precision.name}: layers with dtypes of their own need a "
            "precision that leaves the others alone; use precision=fp32"
        )


def check_monitor(training: Training, score: str | None) -> None:
    """Refuse a monitor that the validation of a task with that score does not measure. Raises UserError."""
    names = ["validation/loss"] + ([f"validation/{score}"] if score is not None else [])
    if training.monitor not in names:
        raise bad_choice("training.monitor", training.monitor, names)


def check_schedule(experiment: Experiment, steps: int | None) -> None:
    """Refuse a schedule that the optimizer cannot follow, or a training of `steps` (None: not known) is too short for.

    Raises UserError.
    """
    schedule = experiment.schedule
    if schedule.constant:
        return
    longest = schedule.longest()
    if steps is not None and longest is not None and longest[1] >= steps:
        key, count = longest
        fewer = max(steps // 10, 1)
        instead = f"choose fewer steps, such as schedule.{key}={fewer}, or " if fewer < steps else ""
        raise UserError(
            f"schedule.{key}={count}: the training has {plural(steps, 'optimizer step')}; {instead}train longer, by "
            f"training.steps={count + 1} or more"
        )
    if steps is not None:
        for step in (*range(0, steps, max(steps // STEPS_TRIED, 1)), steps - 1):
            factor_of(schedule, step, steps)
    if not hasattr(experiment.optimizer, "learning_rate"):
        raise UserError(
            f"schedule={choice(schedule)} with optimizer={choice(experiment.optimizer)}: it has no learning_rate to "
            "schedule; use schedule=constant"
        )


def factor_of(schedule: Schedule, step: int, steps: int) -> float:
    """A schedule's factor. Raises UserError where it fails or gives what is not a number from 0 on."""
    try:
        factor = schedule.factor(step, steps)
    except Exception as error:
        raise UserError(f"{_called(schedule, step, steps)} fails: {in_words(error)}") from error
    if not isinstance(factor, Real) or not math.isfinite(factor) or factor < 0:
        raise UserError(f"{_called(schedule, step, steps)} gives {shown(factor)}; give a number, 0 or more")
    return float(factor)


def _called(schedule: Schedule, step: int, steps: int) -> str:
    return f"schedule={choice(schedule)}: factor({step}, {steps})"


def _check_task(experiment: Experiment) -> None:
    """That stage, model, loss and metrics are for the dataset's task. Raises UserError and Impossible."""
    _check_task_of_stage(experiment)
    _check_task_of_model(experiment)
    _check_padding(experiment)
    _check_metrics(experiment)
    _check_targets_of_loss(experiment)


def _check_task_of_stage(experiment: Experiment) -> None:
    task, wanted = experiment.data_source.task, experiment.stage.task
    if wanted is None or issubclass(task, wanted):
        return
    stage = next((OF_TASK[cls.__name__][0] for cls in task.__mro__ if cls.__name__ in OF_TASK), "stage=train")
    stage += _fitting(experiment, task)
    other = ""
    if wanted.__name__ in OF_TASK:
        other = f"; or dataset={OF_TASK[wanted.__name__][1]}{_fitting(experiment, wanted)}"
    raise UserError(
        f"dataset={choice(experiment.dataset)} with stage={choice(experiment.stage)}: its task is "
        f"{task.__name__}, not {wanted.__name__}; use {stage}{other}"
    )


def _fitting(experiment: Experiment, task: type[Any], *, of_model: bool = True) -> str:
    """The model and the loss that have to be chosen too for a task, as the end of a command: where others are here.

    Named at once, so that who follows a refusal is not refused again.
    """
    takes, kind, loss = experiment.data_model.takes, task.example_kind, experiment.loss
    words = []
    if of_model and takes is not None and kind in MODELS and kind != takes:
        words.append(f"model={MODELS[kind]}")
    unfit = task.targets not in (None, _targets_of(loss)) and _targets_of(loss) is not None
    if unfit or (task.pads and not loss.masks):
        words.append(f"loss={LOSSES[task.targets or 'classes']}")
    return "".join(f" {word}" for word in words)


def _check_task_of_model(experiment: Experiment) -> None:
    takes, kind = experiment.data_model.takes, experiment.data_source.task.example_kind
    if takes is None or kind in (None, takes):
        return
    task = experiment.data_source.task
    fits = [f"model={MODELS[kind]}{_fitting(experiment, task, of_model=False)}"] if kind in MODELS else []
    if takes in DATASETS:
        other_stage = "" if experiment.stage.task is None else f"stage={STAGES[takes]} "
        fits.append(f"{other_stage}dataset={DATASETS[takes]}")
    raise Impossible(
        f"model={choice(experiment.model)} with dataset={choice(experiment.dataset)}: it takes {takes}, and the "
        f"examples of this dataset are {kind}; use {' or '.join(fits) or 'a model of yours'}"
    )


def _check_padding(experiment: Experiment) -> None:
    if experiment.data_source.task.pads and not experiment.loss.masks:
        raise Impossible(
            f"loss={choice(experiment.loss)} with dataset={choice(experiment.dataset)}: some of its targets are "
            "padding, which this loss would count; use loss=cross_entropy"
        )


def _check_metrics(experiment: Experiment) -> None:
    task = experiment.data_source.task
    for metric in experiment.training.metrics:
        if metric.takes not in (None, task.targets):
            fit = [word for word, cls in words().items() if cls.takes == task.targets]
            targets = f"the targets of dataset={choice(experiment.dataset)} are {task.targets or 'neither'}"
            raise UserError(
                f"{KEY}={name_of(metric)}: takes {metric.takes}, and {targets}; choose from "
                f"{', '.join(fit) or 'metrics of yours'}"
            )
        if name_of(metric) in task.tested and not is_judges(metric):
            raise UserError(
                f"{KEY}={name_of(metric)}: {task.__name__} measures another metric of that name; "
                f"{renamed_by([metric])} gives yours another"
            )


def _check_targets_of_loss(experiment: Experiment) -> None:
    targets = experiment.data_source.task.targets
    takes = _targets_of(experiment.loss)
    if takes is not None and targets not in (None, takes):
        raise Impossible(
            f"loss={choice(experiment.loss)} with dataset={choice(experiment.dataset)}: it takes "
            f"{takes}, and the targets of this dataset are {targets}; use loss={LOSSES[targets]}"
        )


def _targets_of(loss: Loss) -> str | None:
    """What targets a loss takes, by its own class: a user's may build on one of ours."""
    takes: str | None = vars(type(loss)).get("takes")
    return takes


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
    training, last = experiment.training, profiler.skip + profiler.steps
    if training.steps is not None and last > training.steps * training.accumulate:
        raise UserError(
            f"profiler.skip={profiler.skip} profiler.steps={profiler.steps}: needs {last:,} batches, but "
            f"training.steps={training.steps} has {training.steps * training.accumulate:,} at most; "
            "lower them or train longer"
        )
