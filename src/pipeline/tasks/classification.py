"""Classification: each example is of one class, and a model gives a logit for each (images, or rows of numbers)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.metrics import classification as metrics
from pipeline.metrics.per_class import Counts
from pipeline.models import Shapes
from pipeline.report.csv_file import csv_file
from pipeline.report.intervals import Interval, of_share
from pipeline.runs.result import Metric, Table
from pipeline.tasks import Details, ExampleKind, Judge, Ops, Targets, Task

if TYPE_CHECKING:
    from pipeline.contracts import Loss
    from pipeline.runs.result import Direction
    from pipeline.runs.run import Run

DRAWABLE = (1, 3, 4)  # channels that are a picture: grey, colours, colours and transparency
IMAGE = 3  # dimensions: height, width, channels
SHOWN = 24  # examples on the sheet of test images
NAMED = 5  # classes in a note


@dataclass(frozen=True)
class Classification(Task):
    """Examples of shape `x` in `classes`: images (height, width, channels), or any other shape."""

    may_count: ClassVar[tuple[str, ...]] = ("images", "examples")
    score: ClassVar[str | None] = "accuracy"
    example_kind: ClassVar[ExampleKind | None] = "numbers"
    targets: ClassVar[Targets | None] = "classes"
    headline: ClassVar[str | None] = "test/accuracy"
    independent: ClassVar[bool] = True
    tested: ClassVar[Mapping[str, Direction]] = {
        "loss": "min",
        "accuracy": "max",
        **{f"macro_{name}": "max" for name in ("precision", "recall", "f1")},
    }

    x: tuple[int, ...]
    classes: tuple[str, ...]

    @property
    def unit(self) -> str:
        """Rows of numbers are no images."""
        return self.may_count[len(self.x) != IMAGE]

    @property
    def shapes(self) -> Shapes:
        return Shapes(self.x, (len(self.classes),))

    def scores(self, ops: Ops, outputs: Any, y: Any) -> Any:
        return ops.argmax(outputs, 1) == y

    def check(self, y: np.ndarray) -> str | None:
        if y.ndim != 1 or y.dtype != np.int64:
            return f"shape {y.shape} and dtype {y.dtype}; labels are (N,) int64, one for each example"
        if len(y) and not (y.min() >= 0 and y.max() < len(self.classes)):
            return f"labels {y.min()} to {y.max()}; {len(self.classes)} classes are 0 to {len(self.classes) - 1}"
        return None

    def judge(self, loss: Loss) -> Judge:
        return ClassificationJudge(self, loss)

    def notes(self, train: np.ndarray, test: np.ndarray) -> tuple[str, ...]:
        """Classes without an example, of which nothing can be learned or measured."""
        found = []
        for split, y in (("training", train), ("test", test)):
            n_of = np.bincount(y, minlength=len(self.classes))
            names = [name for name, n in zip(self.classes, n_of, strict=True) if not n]
            if names:
                more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
                found.append(f"no {split} example of {', '.join(names[:NAMED])}{more}")
        return tuple(found)

    def card(self) -> dict[str, Any]:
        return {**super().card(), "classes": list(self.classes)}


def worst_class(classes: Sequence[str], counts: Counts) -> tuple[tuple[str, str], ...]:
    """A row about the class with the lowest F1 of those that have an example; none of a single class."""
    if len(classes) < 2:
        return ()
    present = np.flatnonzero(counts.actual)
    worst = present[counts.f1[present].argmin()] if len(present) else 0
    scores = ", ".join(f"{name} {one[worst]:.4f}" for name, one in counts.scores.items())
    return (("worst class", f"{classes[worst]}: {scores}"),)


class ClassificationJudge(Judge):
    """Loss, accuracy and a table of the classes; draws the confusion matrix and, of images, a sheet."""

    def __init__(self, task: Classification, loss: Loss) -> None:
        self.task = task
        self.loss, self.accuracy = metrics.Mean(loss.numpy), metrics.Mean(metrics.accuracy)
        self.counts = np.zeros((len(task.classes), len(task.classes)), np.int64)
        self.labels: list[np.ndarray] = []  # one byte or a few an example, beside its logits
        self.predicted: list[np.ndarray] = []
        self.first: list[tuple[np.ndarray, np.ndarray]] = []  # x and logits of the first SHOWN

    def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None:
        self.loss.add(outputs, y)
        self.accuracy.add(outputs, y)
        self.counts += metrics.confusion(outputs, y)
        small = np.min_scalar_type(len(self.task.classes))
        self.labels.append(y.astype(small))
        self.predicted.append(outputs.argmax(axis=1).astype(small))
        left = SHOWN - sum(len(x) for x, _ in self.first)
        if left > 0:
            self.first.append((np.array(x[:left]), outputs[:left]))

    def metrics(self) -> tuple[Metric, ...]:
        return (
            Metric("test/loss", self.loss.value(), direction="min"),
            Metric("test/accuracy", self.accuracy.value(), direction="max"),
        )

    def intervals(self) -> Mapping[str, Interval]:
        """Of the accuracy, by the number of examples. A task that derives from this one may have dependent ones."""
        if not self.task.independent:
            return {}
        found = of_share(int(np.trace(self.counts)), int(self.counts.sum()))
        return {} if found is None else {"test/accuracy": found}

    def details(self) -> Details:
        """A row for each class; the means over them; and the class with the lowest F1."""
        counts, classes = Counts.of_confusion(self.counts), self.task.classes
        by_class = counts.scores
        rows = [
            (name, *(f"{numbers[row]:.4f}" for numbers in by_class.values()), f"{counts.actual[row]:,}")
            for row, name in enumerate(classes)
        ]
        table = Table("the test set by class", ("class", *by_class, "examples"), tuple(rows))
        means = (Metric(f"test/macro_{name}", counts.mean(one), direction="max") for name, one in by_class.items())
        return Details(tuple(means), (table,), worst_class(classes, counts))

    def write(self, run: Run) -> None:
        """predictions.csv: a row for each example, in the order of the test set: its class and the predicted one, by
        name."""
        classes = self.task.classes
        with csv_file(run.artifact("predictions.csv")) as rows:
            rows.writerow(("actual", "predicted"))
            pairs = zip(np.concatenate(self.labels), np.concatenate(self.predicted), strict=True)
            rows.writerows((classes[true], classes[best]) for true, best in pairs)

    def draw(self, run: Run, title: str) -> None:
        from pipeline.report import figures
        from pipeline.report.canvas import without_glyph

        classes, labels = self.task.classes, np.concatenate(self.labels)
        if lacked := len(without_glyph("".join(classes))):
            of = "of the characters in the names of classes, which are boxes there; predictions.csv has them"
            run.note(f"figures: the fonts of matplotlib here lack {lacked:,} {of}")
        of = f"{title}\n{np.trace(self.counts):,} of {len(labels):,} test examples are right"
        figures.confusion_matrix(run.artifact("figures/confusion_matrix.png"), self.counts, classes, of)
        if len(self.task.x) != IMAGE or self.task.x[2] not in DRAWABLE:
            return
        x, logits = (np.concatenate(parts) for parts in zip(*self.first, strict=True))
        title = f"{title}: the first test images and their most probable classes (blue, outlined: true; orange: wrong)"
        sheet = run.artifact("figures/test_images.png")
        figures.image_sheet(sheet, x, metrics.probabilities(logits), classes, labels[: len(x)], title)
