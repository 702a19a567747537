"""Out-of-fold predictions: each example as predicted by the training that did not see it, and their metrics."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from pipeline.metrics.per_class import Counts
from pipeline.report.csv_file import csv_file
from pipeline.report.table import figure
from pipeline.runs.beside import with_figures
from pipeline.runs.result import Metric, Result
from pipeline.tasks.classification import Classification, worst_class
from pipeline.tasks.regression import Regression

if TYPE_CHECKING:
    from pipeline.contracts import Loss
    from pipeline.runs.run import Run
    from pipeline.tasks import Task

FILE = "predictions.csv"  # of each run, and of all together


@dataclass(frozen=True)
class OutOfFold:
    """`heads`: of the columns of FILE. `examples`: the number in the pool, from 0, of each row of `cells`, in order;
    `folds`: in which fold each was tested."""

    heads: tuple[str, ...]
    examples: np.ndarray
    folds: np.ndarray
    cells: list[list[str]]


def result_of(
    run: Run, task: Task, loss: Loss, division: np.ndarray, folders: Mapping[int, Path], title: str
) -> Result:
    """Write all predictions, and measure and draw them together. `division`: the fold of each example of the pool;
    `folders`: the run of each fold that has a result."""
    found = gathered(division, folders)
    if found is None:
        return Result((), notes=(f"task {type(task).__name__}: its runs write no {FILE} with a row an example",))
    write(run, found)
    metrics = measured(task, loss, found)
    rows = [(one.name.replace("/", " "), figure(one.value)) for one in metrics]
    if of_classes(task, found):
        rows += worst_class(task.classes, Counts.of_confusion(confusion(task, found)))
    tested = len(found.examples)
    notes = () if tested == len(division) else (f"{FILE}: {tested:,} of {len(division):,} examples have been tested",)
    return with_figures(Result(metrics, tuple(rows), notes), partial(draw, run, task, found, title))


def gathered(division: np.ndarray, folders: Mapping[int, Path]) -> OutOfFold | None:
    """The predictions of the runs, in the order of the pool.

    None where a run has no row for each example of its fold: a task of the user's may write other files, or none.
    """
    heads, rows = None, dict[int, list[str]]()
    for fold, folder in folders.items():
        path, examples = folder / "artifacts" / FILE, np.flatnonzero(division == fold)
        if not path.is_file():
            return None
        with path.open(newline="", encoding="utf-8") as file:
            first, *cells = csv.reader(file)
        if len(cells) != len(examples) or heads not in (None, first):
            return None
        heads = first
        rows |= zip(examples.tolist(), cells, strict=True)
    if heads is None:
        return None
    order = sorted(rows)
    return OutOfFold(tuple(heads), np.array(order), division[order], [rows[example] for example in order])


def write(run: Run, found: OutOfFold) -> None:
    """A row for each example that was tested."""
    with csv_file(run.artifact(FILE)) as writer:
        writer.writerow(("example", "fold", *found.heads))
        for example, fold, cells in zip(found.examples, found.folds, found.cells, strict=True):
            writer.writerow((example, fold, *cells))


def measured(task: Task, loss: Loss, found: OutOfFold) -> tuple[Metric, ...]:
    """What all predictions together come to, named pooled/<name>: of classes and numbers as our tasks write them."""
    if of_classes(task, found):
        counts = confusion(task, found)
        by_class = Counts.of_confusion(counts)
        accuracy = Metric("pooled/accuracy", float(np.trace(counts) / counts.sum()), direction="max")
        return accuracy, Metric("pooled/macro_f1", by_class.mean(by_class.f1), direction="max")
    if isinstance(task, Regression) and len(found.heads) == 2 * task.outputs:
        judge, (actual, predicted) = task.judge(loss), numbers(task, found)
        judge.add(actual, predicted, actual)
        metrics = [metric for metric in (*judge.metrics(), *judge.details().metrics) if metric.name != "test/loss"]
        return tuple(replace(metric, name=metric.name.replace("test/", "pooled/", 1)) for metric in metrics)
    return ()


def draw(run: Run, task: Task, found: OutOfFold, title: str) -> None:
    """The figure that a run has of its test, of all examples."""
    from pipeline.report import figures

    title = f"{title}\n{len(found.cells):,} examples, predicted by the\ntrainings that did not see them"
    if of_classes(task, found):
        path = run.artifact("figures/confusion_matrix.png")
        figures.confusion_matrix(path, confusion(task, found), task.classes, title)
    elif isinstance(task, Regression) and len(found.heads) == 2 * task.outputs:
        figures.against_actual(run.artifact("figures/predicted_against_actual.png"), *numbers(task, found), title)


def of_classes(task: Task, found: OutOfFold) -> TypeGuard[Classification]:
    """Whether the predictions are classes as our task writes them."""
    return isinstance(task, Classification) and found.heads == ("actual", "predicted")


def confusion(task: Classification, found: OutOfFold) -> np.ndarray:
    """Counts (classes, classes): rows are true classes, columns predicted ones."""
    places = {name: number for number, name in enumerate(task.classes)}
    counts = np.zeros((len(places), len(places)), np.int64)
    for actual, predicted in found.cells:
        counts[places[actual], places[predicted]] += 1
    return counts


def numbers(task: Regression, found: OutOfFold) -> tuple[np.ndarray, np.ndarray]:
    """Actual and predicted numbers (N, outputs)."""
    cells = np.array(found.cells, np.float64)
    return cells[:, : task.outputs], cells[:, task.outputs :]
