"""What the test set says of a trained model: its task's judge and the metrics of `training.metrics`, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contracts import Loss
from pipeline.contracts import Metric as MetricSpec
from pipeline.datasets import Data, Split
from pipeline.errors import UserError
from pipeline.experiment.metrics import is_judges, name_of
from pipeline.machine.capability import Resolved
from pipeline.metrics.total import Total
from pipeline.models import Shapes
from pipeline.raised import in_words
from pipeline.report.intervals import CONFIDENCE, Interval
from pipeline.report.table import alike, figure
from pipeline.runs.fit import Predict
from pipeline.runs.result import Metric, with_ends
from pipeline.spec import choice, is_shipped
from pipeline.tasks import Judge, Task

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

TRIED = 64  # examples by which a metric or a loss of the user's is tried
LARGEST = 2**20  # numbers of their outputs, at most: a language model's are many
Trained = Callable[..., Any]  # (outputs, targets, and where some are padding the rows that count) -> a number


class Measured:
    """`metrics`: the judge's, then those that were asked for. `fault`: which of these came to no number, and why.
    `unit`: what the test examples are called. Intervals are computed when they are asked for, since SciPy comes with
    them: a stage that times passes does so first.
    """

    def __init__(self, judge: Judge, totals: Sequence[Total], unit: str = "examples") -> None:
        self.judge, self.totals, self.unit = judge, totals, unit
        self.metrics, self.details = judge.metrics(), judge.details()
        more = {metric.name: metric for metric in self.details.metrics}
        faults = []
        for total in totals:
            name = f"test/{total.name}"
            if name in {metric.name for metric in (*self.metrics, *more.values())} and not is_judges(total.metric):
                faults.append(f"{name}: the task measures another metric of that name")  # without Task.tested
            elif name not in {metric.name for metric in self.metrics}:
                found = more.pop(name, None) or total.measured()
                self.metrics += () if found is None else (found,)
                faults += [f"{name}: {total.fault}"] if total.fault else []
        self.whole = (*self.metrics, *more.values())
        self.fault = "; ".join(faults) or None

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """By the names of metrics; of most metrics there is none."""
        asked = {f"test/{total.name}": total.interval() for total in self.totals}
        found = {name: one for name, one in asked.items() if one is not None} | {**self.judge.intervals()}
        return {metric.name: found[metric.name] for metric in self.whole if metric.name in found}

    @property
    def kept(self) -> tuple[Metric, ...]:
        """For the result: every metric, and the ends of its interval behind it."""
        return with_ends(self.whole, {name: (one.low, one.high) for name, one in self.intervals.items()})

    def rows(self) -> list[tuple[str, str]]:
        """For the table at the end: each metric by its name in words."""
        return [(metric.name.replace("test/", "test "), self.text(metric)) for metric in self.metrics]

    def text(self, metric: Metric) -> str:
        """A metric's value and its interval, where it has one."""
        interval = self.intervals.get(metric.name)
        if interval is None:
            return figure(metric.value)
        numbers = (metric.value, interval.low, interval.high)
        value, low, high = alike(numbers, (interval.high - interval.low) / 2)
        return f"{value} ({100 * CONFIDENCE:.0f} %: {low} to {high}, for {interval.n:,} {self.unit})"


def measure(
    experiment: Experiment,
    resolved: Resolved,
    data: Data,
    predict: Predict,
    judge: Judge,
    check: Callable[[np.ndarray, int], None],
    run: Run,
) -> Measured:
    """Predict the test set batch by batch and measure it. `check(outputs, first)` sees each batch's outputs.

    `run` shows how far it is: a large test set takes minutes.
    """
    totals = [Total(metric) for metric in experiment.training.metrics]
    dtype, examples = input_dtype(resolved), len(data.test)
    with closing(run.progress("test set", total=examples)) as progress:
        for first, stored, y in batches(data, data.test, experiment.training.evaluation_batch_size):
            x = data.inputs(stored, dtype)
            outputs = read_only(predict(x))
            check(outputs, first)
            judge.add(read_only(x if data.normalisation is None else data.scaled(stored, dtype)), outputs, y)
            judge.ask(predict, x, y)
            add_to(totals, data.task, outputs, y)
            progress.advance(len(y), f"{first + len(y):,} of {examples:,} examples")
    return Measured(judge, totals, data.task.unit)


def add_to(totals: Sequence[Total], task: Task, outputs: np.ndarray, y: np.ndarray) -> None:
    """Add a batch to metrics, as the loss would take it, without padding."""
    counted = task.counted(np, y)
    for total in totals:
        made, targets = task.compared(np, outputs, y)
        if counted is not None:
            total.add(made[counted], targets[counted])
            continue
        total.add(made, targets)
        if task.independent and len(targets) == len(y):  # a task that derives from ours may compare by positions
            total.add_examples(made, targets)


def try_metrics(metrics: tuple[MetricSpec, ...], data: Data) -> None:
    """Refuse a metric that cannot be had of this task, or says nothing of it. Raises UserError.

    One that is not ours is tried on random outputs. What is NaN here may be a number on the whole test set: that is
    judged there.
    """
    for metric in metrics:
        metric.check(data.task.shapes.outputs)
    batch = tried(data.task.shapes)
    for metric in filter(is_tried, metrics):
        generator, total = np.random.default_rng(0), Total(metric)
        for rows in (slice(0, batch), slice(batch, 2 * batch)):
            y = data.targets(data.test.y[rows], "float64")
            outputs = generator.normal(size=(len(y), *data.task.shapes.outputs))
            if len(y):
                add_to([total], data.task, read_only(outputs), read_only(y))
        if total.measured() is None and "gave nan" not in str(total.fault):
            raise UserError(f"training.metrics={total.name}: {total.fault}")


def tried(shapes: Shapes) -> int:
    """By how many examples a metric or a loss is tried."""
    return max(1, min(TRIED, LARGEST // math.prod(shapes.outputs)))


def try_loss(experiment: Experiment, data: Data, trained: Trained | None = None) -> None:
    """Refuse a loss of the user's that cannot be had of this task. Raises UserError.

    It is tried on random outputs, real numbers and then probabilities: one of them it has to take. `trained`: what
    trains, of the same outputs; it has to be the same number, unless it draws.
    """
    loss, task = experiment.loss, data.task
    if is_shipped(loss):
        return
    y = data.targets(data.train.y[: tried(task.shapes)])
    normal = np.random.default_rng(0).standard_normal((len(y), *task.shapes.outputs), np.float32)
    likely = np.exp(normal)
    faults = []
    for outputs in (normal, likely / likely.sum(axis=-1, keepdims=True)):
        fault = _fault_of(experiment, task, outputs, y, trained)
        if fault is None:
            return
        faults.append(fault)
    raise UserError(f"loss={choice(loss)} with dataset={choice(experiment.dataset)}: {faults[0]}")


def _fault_of(
    experiment: Experiment, task: Task, outputs: np.ndarray, y: np.ndarray, trained: Trained | None
) -> str | None:
    compared, counted = task.compared(np, outputs, y), task.counted(np, y)
    made, targets = compared if counted is None else (part[counted] for part in compared)
    rows = (np.ones(len(targets), bool),) if experiment.loss.masks and counted is not None else ()
    wide = made.astype(np.float64)
    try:
        measured = _number("numpy()", lambda: experiment.loss.numpy(read_only(wide), read_only(targets)))
        if trained is None:
            return None
        who = f"{experiment.backend.builder}()"
        found, again = (_number(who, lambda: trained(made, targets, *rows)) for _ in range(2))
    except UserError as error:
        return str(error)
    both = np.isfinite([measured, found]).all() and found == again
    if not both or np.isclose(measured, found, rtol=1e-3, atol=1e-4):
        return None
    return (
        f"for the same outputs and targets numpy() gives {measured:.6g} and {who} {found:.6g}; the loss that is "
        "measured has to be the one that is trained"
    )


def _number(called: str, call: Callable[[], Any]) -> float:
    try:
        found = np.asarray(call())
    except Exception as error:  # whatever the user's code may raise
        raise UserError(f"{called} fails on random outputs: {in_words(error)}") from error
    if found.ndim or found.dtype.kind not in "fiu":
        raise UserError(
            f"{called} gives {found.dtype} of shape {found.shape}; give a number, the mean over the examples"
        )
    return float(found)


def is_tried(metric: MetricSpec) -> bool:
    """Whether a metric is not ours, or another package's: ours are known to work."""
    return bool(metric.packages) or not is_shipped(metric)


def asks_the_data(metric: MetricSpec) -> bool:
    """Whether only the data can tell that a metric can be had of them."""
    return metric.asks_the_data or is_tried(metric)


def batches(data: Data, split: Split, size: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(number of its first example, x as stored, targets that cannot be written to) of each batch."""
    for first in range(0, len(split), size):
        rows = slice(first, first + size)
        yield first, split.x[rows], read_only(data.targets(split.y[rows], "float64"))


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written to. Judges, losses and metrics get the same arrays one after another, and some keep
    them: what one of them wrote would change the numbers of the others."""
    view = array.view()
    view.flags.writeable = False
    return view


def said_of_margins(loss: Loss, what: Sequence[str]) -> tuple[str, ...]:
    """A note on `what` is made of probabilities, where the loss trains none."""
    if not (loss.margins and what):
        return ()
    said = f"of a softmax of the outputs, and loss={choice(loss)} trains margins, not probabilities"
    return (f"{', '.join(what)}: {said}",)


def said_of_metrics(experiment: Experiment, task: Task) -> tuple[str, ...]:
    """`said_of_margins` of the task's own metrics and of those that were asked for."""
    asked = [name_of(metric) for metric in experiment.training.metrics if metric.of_probabilities]
    names = dict.fromkeys((*task.of_probabilities, *asked))
    return said_of_margins(experiment.loss, [f"test/{name}" for name in names])


def input_dtype(resolved: Resolved) -> str:
    """The dtype in which real numbers are handed to a predictor."""
    return "float64" if resolved.precision == "fp64" else "float32"
