"""stage=classifier: train, measure on the test set, draw, save."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.backends.shared import step_breakdown as probe
from pipeline.backends.shared.progress import diverged
from pipeline.contracts import Stage
from pipeline.datasets import Arrays
from pipeline.datasets.check import check_arrays
from pipeline.datasets.fetch import cache_root
from pipeline.errors import RunError, UserError
from pipeline.machine.capability import Resolved
from pipeline.metrics import classification as metrics
from pipeline.models import Shapes, weights
from pipeline.profilers import window
from pipeline.report import table
from pipeline.runs import receipt as receipts
from pipeline.runs.fit import Epoch, Fit, Observation
from pipeline.runs.loss_scale import LossScale
from pipeline.runs.result import Metric, Result, rate, values
from pipeline.runs.run import Run, seconds_since_start
from pipeline.runs.saved import card_sha256
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@spec
class Classifier(Stage):
    """What it trains on what is said by the other groups.

    `probe`: look into a step afterwards (backends/shared/step_breakdown.py), for the precision study: artifacts/probe/.
    """

    probe: bool = False

    headline: ClassVar[str] = "test/accuracy"
    imports: ClassVar[tuple[str, ...]] = ("pipeline.report.figures", "pipeline.runs.receipt")

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train and measure. Raises UserError for data that do not fit and RunError where training cannot go on."""
        receipt = receipts.before(experiment, resolved)
        run.journal.write_receipt(receipt)
        data = load_data(experiment)
        check_fits(experiment, data)
        backend = experiment.backend.load()
        fit = backend.fit(experiment, data, resolved, run)
        check_weights(experiment, fit)
        receipt["card_sha256"] = save_model(run, fit, data)
        save_placement(run, experiment, fit.observed)
        try:
            receipts.after(receipt, experiment, resolved, fit, data.sha256)
        finally:
            run.journal.write_receipt(receipt)
        predict = backend.predictor(experiment, Shapes(data.shape, len(data.classes)), fit.weights, resolved)
        x = data.scaled(data.test.x, input_dtype(resolved))
        logits = predict(x)
        check_logits(experiment, fit, logits)
        found = test_metrics(experiment, logits, data.test.y)
        draw(run, experiment, data, x, logits, fit.epochs, values(found))
        receipt |= timings(run, fit.epochs)
        if self.probe:
            look_into_a_step(run, experiment, resolved, data, experiment.training.batch_size / median_rate(fit.epochs))
        run.journal.write_receipt(receipt)
        return Result(
            metrics=(*found, *rate_metrics(run, fit.epochs, "images"), *scale_metrics(fit)),
            table=tuple(rows(experiment, resolved, fit, values(found), receipt)),
        )


def load_data(experiment: Experiment) -> Arrays:
    """The experiment's dataset, from the user's cache."""
    dataset = experiment.data_source
    data: Arrays = dataset.load(cache_root(dataset.cache), experiment.seed)
    check_arrays(data, type(dataset).__name__.lower())
    return data


def check_fits(experiment: Experiment, data: Arrays) -> None:
    """What only the data can tell. Raises UserError."""
    training = experiment.training
    if training.batch_size > len(data.train):
        raise UserError(
            f"training.batch_size={training.batch_size}: larger than the {len(data.train):,} training images; "
            f"choose 1 to {len(data.train)}"
        )
    window(experiment.profiler, training.batch_size, training.epochs, len(data.train))


def check_weights(experiment: Experiment, fit: Fit) -> None:
    """That the last step, after which no loss was taken, left numbers: before they are saved. Raises RunError.

    Only NaN is told here: a mask that a model keeps may well be infinite, and an infinite weight shows in the logits.
    """
    for name, array in fit.weights.items():
        if np.isnan(array).any():
            raise ended(experiment, fit, f"weight {name} became nan")


def check_logits(experiment: Experiment, fit: Fit, logits: np.ndarray) -> None:
    """That every test figure will be a number. Raises RunError."""
    wrong = metrics.not_finite(logits)
    if wrong is not None:
        raise ended(experiment, fit, f"the test logits became {wrong[1]}")


def ended(experiment: Experiment, fit: Fit, what: str) -> RunError:
    """The error of what was found after the last step."""
    return diverged(what, steps_of(experiment, fit), fit.epochs[-1].number, experiment.precision.name)


def steps_of(experiment: Experiment, fit: Fit) -> int:
    """How many steps were taken, those that a loss scale skipped included."""
    return sum(math.ceil(epoch.images / experiment.training.batch_size) for epoch in fit.epochs)


def scale_metrics(fit: Fit) -> tuple[Metric, ...]:
    """What the loss scale came to, where there was one."""
    return () if fit.loss_scale is None else fit.loss_scale.metrics()


def input_dtype(resolved: Resolved) -> str:
    """The dtype in which images are handed to a predictor."""
    return "float64" if resolved.precision == "fp64" else "float32"


def test_metrics(experiment: Experiment, logits: np.ndarray, labels: np.ndarray) -> tuple[Metric, ...]:
    """The experiment's loss, accuracy and the metrics asked for, of the test set."""
    loss = Metric("test/loss", experiment.loss.numpy(logits, labels), direction="min")
    names = dict.fromkeys(("accuracy", *experiment.training.metrics))
    return loss, *(test_metric(name, metrics.METRICS[name](logits, labels)) for name in names)


def test_metric(name: str, value: float) -> Metric:
    """One of `METRICS`, of the test set."""
    return Metric(f"test/{name}", value, direction="min" if name in metrics.LESS_IS_BETTER else "max")


def save_model(run: Run, fit: Fit, data: Arrays) -> str:
    """Weights, what they take and give (card.json), and the framework's own description of the model, as artifacts.

    Returns the card's hash.
    """
    weights.save(run.artifact("model/weights.npz"), fit.weights)
    card = {"image": list(data.shape), "classes": list(data.classes)}
    run.artifact("model/card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    for name, text in fit.files.items():
        run.artifact(f"model/{name}").write_text(text, encoding="utf-8")
    return card_sha256(card)


def save_placement(run: Run, experiment: Experiment, seen: Observation) -> None:
    """The device and dtype of every operation of the observed step, where device.placement_log asks for it."""
    if not experiment.device.placement_log:
        return
    lines = [f"# {seen.how}", f"{'operation':<48} {'device':<44} {'dtype':<12} count"]
    for (name, device, dtype), count in sorted(seen.operations.items()):
        lines.append(f"{name:<48} {device:<44} {dtype:<12} {count}")
    run.artifact("placement.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw(
    run: Run,
    experiment: Experiment,
    data: Arrays,
    x: np.ndarray,
    logits: np.ndarray,
    epochs: tuple[Epoch, ...],
    figures: dict[str, float],
) -> None:
    """Training curves, confusion matrix, and a sheet of test images with what the model makes of them."""
    from pipeline.report import figures as drawing
    from pipeline.report import predictions

    title, labels = experiment.name, data.test.y
    ends = figures["test/loss"], figures["test/accuracy"]
    drawing.training_curves(run.artifact("figures/training_curves.png"), epochs, ends, title)
    predictions.write(run.artifact("predictions.csv"), logits, labels, data.classes)
    counts = metrics.confusion(logits, labels)
    drawing.confusion_matrix(run.artifact("figures/confusion_matrix.png"), counts, data.classes, title)
    shown = np.arange(min(24, len(labels)))
    likely = metrics.probabilities(logits[shown])
    path = run.artifact("figures/test_images.png")
    drawing.image_sheet(
        path,
        x[shown],
        likely,
        data.classes,
        labels[shown],
        f"{title}: the first test images (blue: the true class; orange: a wrong guess)",
    )


def look_into_a_step(run: Run, experiment: Experiment, resolved: Resolved, data: Arrays, step_s: float) -> None:
    """After everything is measured: the first step's numbers, the machine's rates, and where a step's time goes.

    `step_s`: what a step of the training took.
    """
    backend = importlib.import_module(experiment.backend.probe)
    first = backend.first_step(experiment, data, resolved)
    weights.save(run.artifact("probe/gradients.npz"), first.gradients)
    weights.save(run.artifact("probe/weights.npz"), first.weights)
    found = probe.as_json(
        backend.machine(experiment, resolved), backend.step_breakdown(experiment, data, resolved, step_s)
    )
    text = json.dumps({"loss": first.loss, **found}, indent=1)
    run.artifact("probe/step.json").write_text(text + "\n", encoding="utf-8")


def steady(epochs: tuple[Epoch, ...]) -> tuple[Epoch, ...]:
    """The epochs that a rate is told from: not the first, which starts cold, unless it is all there is."""
    return epochs[1:] or epochs


def median_rate(epochs: tuple[Epoch, ...]) -> float:
    """Training images per second, the median over the steady epochs."""
    return float(np.median([epoch.images_per_s for epoch in steady(epochs)]))


def rate_metrics(run: Run, epochs: tuple[Epoch, ...], unit: str) -> tuple[Metric, ...]:
    """The rate of training, in `unit` a second: under another name where a profiler ran, with what its window cost."""
    if run.profile is None:
        return (rate(f"{unit}_per_s", median_rate(epochs), unit),)
    times = {name: run.profile.get(name) for name in ("step_s", "step_after_s", "overhead")}
    cost = tuple(
        Metric(f"profiler/{name}", value, "" if name == "overhead" else "s", "time", "min")
        for name, value in times.items()
        if value is not None
    )
    return rate(f"{unit}_per_s_with_profiler", median_rate(epochs), unit), *cost


def timings(run: Run, epochs: tuple[Epoch, ...]) -> dict[str, Any]:
    """How long what took, and the rate of training."""
    rates = [epoch.images_per_s for epoch in steady(epochs)]
    profiled = {} if run.profile is None else {"profile": run.profile}
    return {
        **profiled,
        "wall_time_s": seconds_since_start(),
        "training_s": sum(epoch.seconds for epoch in epochs),
        **run.marks,
        "images_per_s": {
            "median": float(np.median(rates)),
            "min": min(rates),
            "max": max(rates),
            "n": len(rates),
            "with_profiler": run.profile is not None,
        },
    }


def rows(
    experiment: Experiment, resolved: Resolved, fit: Fit, figures: dict[str, float], receipt: dict[str, Any]
) -> list[tuple[str, str]]:
    """The table at the end."""
    peak = fit.peak_memory
    memory = f"{table.size(peak['process_bytes'])} of the process"
    if "device_bytes" in peak:
        memory = f"{table.size(peak['device_bytes'])} on the GPU, {memory}"
    rates = [epoch.images_per_s for epoch in steady(fit.epochs)]
    hidden = "; the first epoch, cold, not counted" if len(fit.epochs) > 1 else "; one epoch, cold start included"
    profiled = "; measured with a profiler" if receipt.get("profile") else ""
    extra = [(name.replace("test/", "test "), f"{value:.4f}") for name, value in figures.items()]
    compiled = receipt.get("compile_s")
    return [
        *((name, value) for name, value in extra),
        (
            "wall time",
            f"{table.seconds(receipt['wall_time_s'])}, of which training {table.seconds(receipt['training_s'])}",
        ),
        ("training rate", table.spread(rates, " images/s") + hidden + profiled),
        *([("compilation", f"{table.seconds(compiled)}, not counted as training")] if compiled else []),
        *overhead_row(receipt.get("profile")),
        ("peak memory", memory),
        ("device", f"{resolved.place} ({receipt['device']['hardware']['name']}; {resolved.device_reason})"),
        ("precision", precision_row(experiment, resolved, fit.observed)),
        *([("loss scale", scale_row(experiment, fit.loss_scale, fit))] if fit.loss_scale else []),
    ]


def scale_row(experiment: Experiment, scale: LossScale, fit: Fit) -> str:
    """Where the loss scale began and ended, and the steps that it cost."""
    steps = steps_of(experiment, fit)
    return f"{scale.initial:,.6g} -> {scale.final:,.6g}; {scale.skipped_steps:,} of {steps:,} steps skipped (overflow)"


def overhead_row(profile: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Which steps a profiler looked at, and what a step took there and after."""
    if profile is None:
        return []
    if profile["steps"] is None:
        return [("profiler", f"{profile['profiler']}: no window of steps")]
    first, last = profile["steps"]
    text = f"{profile['profiler']}: steps {first} to {last}, {profile['step_s'] * 1000:.3g} ms each"
    if profile["overhead"] is None:
        return [("profiler", f"{text}; overhead not measured: no step after them")]
    after = f"{profile['step_after_s'] * 1000:.3g} ms (median) in the {profile['steps_after']:,} after them"
    return [("profiler", f"{text} against {after} (overhead {profile['overhead']:+.0%})")]


def precision_row(experiment: Experiment, resolved: Resolved, seen: Observation) -> str:
    """Requested -> effective, and the dtypes that were seen."""
    name = experiment.precision.name
    arrow = name if name == resolved.precision else f"{name} -> {resolved.precision} ({resolved.precision_reason})"
    text = f"{arrow}; products seen in {', '.join(sorted(seen.matmuls)) or 'none'}"
    if seen.compiled and set(seen.compiled) != set(seen.matmuls):
        text += f" (compiled to {', '.join(sorted(seen.compiled))})"
    return text


def saved_weights(folder: Path) -> weights.Weights:
    """The weights of a saved run."""
    return weights.load(folder / "artifacts" / "model" / "weights.npz")
