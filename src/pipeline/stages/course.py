"""The course of a training run: load, fit, save, measure, draw. Every stage that trains a network runs this one."""

from __future__ import annotations

import importlib
import json
import re
import time
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.backends.shared import step_breakdown
from pipeline.backends.shared.progress import diverged
from pipeline.datasets import Data
from pipeline.errors import RunError, cut, plural
from pipeline.machine.capability import Resolved
from pipeline.machine.launched import launched
from pipeline.machine.others import Others
from pipeline.models.weights import STATISTICS, kind_of
from pipeline.report import table
from pipeline.runs import receipt as receipts
from pipeline.runs import weights
from pipeline.runs.beside import beside, joined
from pipeline.runs.fit import Fit, Observation, not_finite
from pipeline.runs.result import Metric, Result, values
from pipeline.runs.resume import resumptions
from pipeline.runs.saved import card_sha256
from pipeline.spec import choice
from pipeline.stages import training_table
from pipeline.stages.measuring import measure, said_of_metrics
from pipeline.stages.prepared import prepared
from pipeline.stages.rates import median_rate, rate_metrics, timings
from pipeline.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run, Watcher


WARM = 50  # steps after which running statistics that keep 0.9 of themselves at each have less than 1% of their start
OVERTIME_S, OVERTIME = 1.0, 0.1  # seconds, and as a part of what was given, from which on overtime is noted
NOT_DECAYED = (
    "torch decays no weight that the loss does not depend on; TensorFlow and JAX do, where such weights are not noted"
)


def train(
    experiment: Experiment,
    resolved: Resolved,
    run: Run,
    *,
    probe: bool,
    task: type[Task] | None,
    watched: Callable[[Task], Watcher] | None = None,
) -> Result:
    """Train and measure. `probe`: measure a step by itself afterwards, too. `task`: what the data have to be of.
    `watched`: makes, of the data's task, what is called with the step and the weights after each validation.

    Raises UserError for data that do not fit the settings and RunError where training cannot go on.
    """
    receipt = receipts.before(experiment, resolved) | resumptions(run)
    data = prepared(experiment, run, receipt, task)
    judge = data.task.judge(experiment.loss)
    if watched is not None:
        run.watchers.append(watched(data.task))
    backend = experiment.backend.load()

    fit, of_others = fitted(experiment, resolved, run, receipt, data, backend)
    run.last_epoch = of_kept(fit, run.last_epoch, data.task)
    validated = data.task.validated(experiment.loss, values(run.last_epoch), data.validation.y)
    keep(experiment, resolved, run, receipt, fit, data)

    predict = backend.predictor(experiment, data.task.shapes, fit.weights, resolved)
    measured = measure(experiment, resolved, data, predict, judge, partial(check_outputs, experiment, fit), run)
    also = [
        beside("training curves: not drawn", partial(draw_curves, run, experiment, data, fit, measured.metrics)),
        beside("predictions: not written", partial(judge.write, run)),
        beside("test set: not drawn", partial(judge.draw, run, experiment.name)),
    ]
    if probe:
        step_s = experiment.training.batch_size * data.task.units / median_rate(fit.epochs)
        also.append(beside("a step: not measured", partial(probe_a_step, run, experiment, resolved, data, step_s)))
    receipt |= timings(run, fit.epochs, data.task.unit, of_others)
    run.journal.write_receipt(receipt)
    together, scaled = joined(also), () if fit.loss_scale is None else fit.loss_scale.metrics()
    return Result(
        metrics=(*rate_metrics(run, fit.epochs, data.task.unit), *measured.kept, *validated, *scaled),
        table=tuple(training_table.rows(experiment, resolved, fit, measured, receipt, data.task.unit)),
        notes=(*data.task.notes(data.train.y, data.test.y), *said_of_metrics(experiment, data.task), *together.notes),
        details=measured.details.tables,
        failed=measured.fault or together.failed,
    )


def fitted(
    experiment: Experiment, resolved: Resolved, run: Run, receipt: dict[str, Any], data: Data, backend: Any
) -> tuple[Fit, float | None]:
    """Train, and note what of the weights is not as one would think. Raises RunError where training cannot go on.

    Also the part of the cores that other processes had meanwhile.
    """
    run.check_seen = partial(check_first_step, experiment, resolved, run, receipt)
    others = Others()
    fit: Fit = backend.fit(experiment, data, resolved, run)
    # A launcher's processes are none of our children: what they do would count as what others do.
    of_others = None if launched(experiment.device.processes) else others.share()
    check_weights(experiment, fit)
    receipt |= of_updates(experiment, fit, data.task)
    for said in (
        said_of_updates(experiment, receipt),
        said_of_unchanged(experiment, fit, receipt),
        said_of_unchanged_averages(experiment, fit, receipt),
        said_of_statistics(experiment, fit),
        said_of_few_steps(fit),
        said_of_overtime(experiment, fit, run.marks.get("compile_s", 0.0)),
    ):
        if said:
            run.note(said)
    return merged(fit, run, receipt), of_others


def of_updates(experiment: Experiment, fit: Fit, task: Task) -> dict[str, Any]:
    """For the receipt: how many weights were frozen; which got which update, of an optimizer with several; which came
    out as they went in."""
    found: dict[str, Any] = {}
    shapes = {name: array.shape for name, array in fit.weights.items() if kind_of(name) not in STATISTICS}
    if experiment.starting.freeze:
        found["parameters_frozen"] = sum(prod(shapes[name]) for name in fit.start.frozen if name in shapes)
    if experiment.optimizer.several:
        every = experiment.kinds_of_update(shapes, task.shapes.outputs[-1])
        kinds = {name: kind for name, kind in every.items() if name not in fit.start.frozen}
        found["updates"] = {
            kind: [name for name in kinds if kinds[name] == kind] for kind in dict.fromkeys(kinds.values())
        }
    averages = fit.unchanged_averages
    if names := [name for name in fit.unchanged if name not in averages]:
        found["unchanged_weights"] = names
    if averages:
        found["unchanged_averages"] = averages
    return found


def said_of_unchanged(experiment: Experiment, fit: Fit, receipt: Mapping[str, Any]) -> str | None:
    """Weights that came out of several steps as they went in: an optimizer was to change them."""
    names = receipt.get("unchanged_weights", [])
    if not names:
        return None
    all_of_it = len(names) == len(fit.start.digests)
    what = "changed none of its weights" if all_of_it else f"not changed {cut(', '.join(names))}"
    decayed = experiment.backend.name == "torch" and bool(getattr(experiment.optimizer, "weight_decay", 0))
    elsewhere = f"; {NOT_DECAYED}" if decayed else ""
    return (
        f"the training has {what} in {fit.updates:,} steps: the loss does not depend on them, their gradient is 0, "
        f"or their updates are too small for their dtype{elsewhere}"
    )


def said_of_unchanged_averages(experiment: Experiment, fit: Fit, receipt: Mapping[str, Any]) -> str | None:
    """Weights that the steps changed and whose moving average, which is saved, is still what they were at first."""
    names, ema = receipt.get("unchanged_averages", []), experiment.training.ema
    if not names or ema is None:
        return None
    which = "any weight" if len(names) == len(fit.start.digests) else cut(", ".join(names))
    return (
        f"training.ema={ema}: {fit.updates:,} steps have changed the weights, but not the average of {which}, which is "
        f"judged and saved: a step moves it by {1 - ema:.0e} of the difference, too little for its dtype; use a "
        "smaller training.ema"
    )


def said_of_updates(experiment: Experiment, receipt: Mapping[str, Any]) -> str | None:
    """Where an optimizer with several updates gives all weights the same one."""
    updates = receipt.get("updates", {})
    if len(updates) != 1:
        return None
    return (
        f"optimizer={choice(experiment.optimizer)}: all trained weights get its {next(iter(updates))} update; the "
        "settings of its other update have no effect"
    )


def said_of_statistics(experiment: Experiment, fit: Fit) -> str | None:
    """Where the weights are averages, and the running statistics that they are used with are not."""
    ema, layers = experiment.training.ema, gathering(fit)
    if ema is None or not layers:
        return None
    return (
        f"training.ema={ema}: the running statistics of {cut(' and '.join(layers))} are not averaged; the average is "
        "judged and saved with those of the weights themselves: recompute them on training examples before you use it"
    )


def said_of_few_steps(fit: Fit) -> str | None:
    """Where running statistics may still be those of the beginning: a net can learn all and yet fail in validation."""
    layers = gathering(fit, beside=fit.start.loaded)
    if not layers or not 0 < fit.updates < WARM:
        return None
    return (
        f"the running statistics of {cut(' and '.join(layers))} are of {plural(fit.updates, 'step')}: of fewer than "
        f"{WARM} they still hold some of the values that they began with, and validation and test, which use them, may "
        "come out far worse than training; train longer"
    )


def gathering(fit: Fit, beside: Collection[str] = ()) -> list[str]:
    """The layers whose running statistics the training gathered, without those `beside`, by their weights' names."""
    out = {*fit.start.frozen, *beside}
    names = [name for name in fit.weights if kind_of(name) in STATISTICS and name not in out]
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def said_of_overtime(experiment: Experiment, fit: Fit, compile_s: float) -> str | None:
    """Where a training was clearly longer than it was given: neither a step nor a compilation is cut short."""
    given, took = experiment.training.max_time, sum(epoch.seconds for epoch in fit.epochs) + compile_s
    if given is None or took - given < max(OVERTIME_S, OVERTIME * given):
        return None
    compiling = f", of which {table.seconds(compile_s)} compiling" if compile_s else ""
    return (
        f"training.max_time={given:g}: training took {table.seconds(took)}{compiling}: a step under way is finished, "
        "and so is compiling"
    )


def of_kept(fit: Fit, last: tuple[Metric, ...], task: Task) -> tuple[Metric, ...]:
    """The last epoch's metrics; of the epoch whose weights were kept, where those are the best ones."""
    validation = fit.kept.get("validation")
    if not isinstance(validation, list | tuple):
        return last
    of_best = (one for one in fit.epochs if one.number == fit.kept["epoch"])
    found = {one.name: one.value for epoch in of_best for one in epoch.metrics(task.unit, task.score, task.better)}
    found |= zip(("validation/loss", f"validation/{task.score}"), validation, strict=True)
    return tuple(replace(metric, value=found.get(metric.name, metric.value)) for metric in last)


def check_weights(experiment: Experiment, fit: Fit) -> None:
    """That the last step, after which no loss was taken, left numbers: before they are saved. Raises RunError.

    Only NaN is refused here: a mask that a model keeps may be infinite, and an infinite weight shows in the outputs.
    """
    for name, array in fit.weights.items():
        if np.isnan(array).any():
            raise ended(experiment, fit, f"weight {name} became nan")


def check_outputs(experiment: Experiment, fit: Fit, outputs: np.ndarray, first: int) -> None:
    """That a batch of the test set, from example `first`, gave numbers. Raises RunError."""
    wrong = not_finite(outputs)
    if wrong is not None:
        raise ended(experiment, fit, f"an output for test example {first + wrong[0]} became {wrong[1]}")


def ended(experiment: Experiment, fit: Fit, what: str) -> RunError:
    """The error of what was found after the last step."""
    return diverged(what, fit.steps, fit.epochs[-1].number, experiment.precision.name)


def merged(fit: Fit, run: Run, receipt: dict[str, Any]) -> Fit:
    """The fit of a model whose adapters are part of its weights; the adapters alone are saved beside them."""
    adapters = fit.start.adapters
    if adapters is None:
        return fit
    together, alone = adapters.split(fit.weights)
    receipt["adapters_sha256"] = adapters.save(run.artifact("model/adapters.npz"), alone)
    return replace(fit, weights=together)


def keep(experiment: Experiment, resolved: Resolved, run: Run, receipt: dict[str, Any], fit: Fit, data: Data) -> None:
    """Save the model, and what was observed of its training. Raises RunError where that is not what was asked for."""
    task = data.task
    receipt["card_sha256"] = save_model(run, fit, data)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(task).__name__).lower()  # language_modelling
    receipt["task"] = {"name": name, "unit": task.unit, "units": task.units, "score": task.score}
    if data.normalisation is not None:
        receipt["normalisation"] = data.normalisation.plain()
    save_placement(run, experiment, fit.observed)
    try:
        receipts.after(receipt, experiment, resolved, fit, data.sha256)
    finally:
        run.journal.write_receipt(receipt)


def save_model(run: Run, fit: Fit, data: Data) -> str:
    """Weights, what they take and give (card.json), and the framework's own description of the model, as artifacts.

    Returns the card's hash.
    """
    weights.save(run.artifact("model/weights.npz"), fit.weights)
    card = data.task.card() | values_of(data)
    if data.normalisation is not None:
        card["normalisation"] = data.normalisation.plain()
    run.artifact("model/card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    for name, text in fit.files.items():
        run.artifact(f"model/{name}").write_text(text, encoding="utf-8")
    return card_sha256(card)


def values_of(data: Data) -> dict[str, Any]:
    """For the card: what numbers are divided by, what columns are called, the range of images that nothing brings to
    [0, 1]."""
    if data.holds_tokens:
        return {}
    found: dict[str, Any] = {"scale": data.scale} | ({"columns": [*data.columns]} if data.columns else {})
    if data.scale is not None or len(data.task.shapes.x) != 3:
        return found
    return found | {"range": [float(data.train.x.min()), float(data.train.x.max())]}


def check_first_step(
    experiment: Experiment, resolved: Resolved, run: Run, receipt: dict[str, Any], seen: Observation
) -> None:
    """End a training that does not run as asked when its first steps show it, not after the last. Raises RunError."""
    try:
        receipts.check_observed(receipt, experiment, resolved, seen)
    except RunError:
        run.journal.write_receipt(receipt)
        raise


def save_placement(run: Run, experiment: Experiment, seen: Observation) -> None:
    """The device and dtype of every operation of the observed step, where device.placement_log asks for it."""
    if not experiment.device.placement_log:
        return
    lines = [f"# {seen.how}", f"{'operation':<48} {'device':<44} {'dtype':<12} count"]
    for (name, device, dtype), count in sorted(seen.operations.items()):
        lines.append(f"{name:<48} {device:<44} {dtype:<12} {count}")
    run.artifact("placement.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw_curves(run: Run, experiment: Experiment, data: Data, fit: Fit, measured: tuple[Metric, ...]) -> None:
    """Loss and score by epoch, and of the test set with the weights that were kept."""
    from pipeline.report import figures

    path, found = run.artifact("figures/training_curves.png"), values(measured)
    score = data.task.score
    tested = {"loss": found["test/loss"]} | ({} if score is None else {score: found[f"test/{score}"]})
    of = f"of step {fit.kept['step']:,}" if fit.kept.get("weights") == "best" else "at the end"
    figures.training_curves(path, fit.epochs, tested, experiment.name, of)


def probe_a_step(run: Run, experiment: Experiment, resolved: Resolved, data: Data, step_s: float) -> None:
    """After everything is measured: the first step's numbers, the machine's rates, and where a step's time goes.

    `step_s`: what a step of the training took.
    """
    started, others = time.perf_counter(), Others()
    try:
        backend = importlib.import_module(experiment.backend.probe)
        first = backend.first_step(experiment, data, resolved)
        weights.save(run.artifact("probe/gradients.npz"), first.gradients)
        weights.save(run.artifact("probe/weights.npz"), first.weights)
        parts = backend.step_breakdown(experiment, data, resolved, step_s)
        found = step_breakdown.as_json(backend.machine(experiment, resolved), parts)
        text = json.dumps({"loss": first.loss, "cores_of_others": others.share(), **found}, indent=1)
        run.artifact("probe/step.json").write_text(text + "\n", encoding="utf-8")
    finally:
        run.marks["probe_s"] = time.perf_counter() - started
