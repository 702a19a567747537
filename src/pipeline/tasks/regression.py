"""Regression: each example has one or several real numbers, which a model gives as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.metrics.classification import Mean
from pipeline.models import Shapes
from pipeline.report.csv_file import csv_file
from pipeline.report.intervals import Interval, by_examples
from pipeline.report.table import figure
from pipeline.runs.result import Metric, Table
from pipeline.tasks import Details, ExampleKind, Judge, Ops, Targets, Task

if TYPE_CHECKING:
    from pipeline.contracts import Loss
    from pipeline.runs.result import Direction
    from pipeline.runs.run import Run


@dataclass(frozen=True)
class Regression(Task):
    """Examples of shape `x`, each with `outputs` numbers."""

    example_kind: ClassVar[ExampleKind | None] = "numbers"
    targets: ClassVar[Targets | None] = "numbers"
    score: ClassVar[str | None] = "mean_absolute_error"
    better: ClassVar[Direction] = "min"
    headline: ClassVar[str | None] = "test/mean_absolute_error"
    independent: ClassVar[bool] = True
    tested: ClassVar[Mapping[str, Direction]] = {
        "loss": "min",
        "mean_absolute_error": "min",
        "root_mean_squared_error": "min",
        "r2": "max",
    }

    x: tuple[int, ...]
    outputs: int

    @property
    def shapes(self) -> Shapes:
        return Shapes(self.x, (self.outputs,))

    def scores(self, ops: Ops, outputs: Any, y: Any) -> Any:
        return ops.sum(ops.abs(outputs - y), -1) / self.outputs

    def check(self, y: np.ndarray) -> str | None:
        if y.shape[1:] != (self.outputs,) or y.dtype.kind != "f":
            return f"shape {y.shape} and dtype {y.dtype}; targets are (N, {self.outputs}) floating-point numbers"
        return None if np.isfinite(y).all() else "holds numbers that are not finite"

    def judge(self, loss: Loss) -> Judge:
        return RegressionJudge(loss, independent=self.independent)


class RegressionJudge(Judge):
    """Loss, mean absolute and root mean squared error, R²; draws predicted against actual numbers.

    R² of an output is 1 - (sum of squared errors) / (sum of squared distances of the targets from their mean), and of
    several outputs the mean of theirs. There is none where all targets of an output are the same. `independent`: as
    the task says of its examples.
    """

    def __init__(self, loss: Loss, *, independent: bool = True) -> None:
        self.independent = independent
        self.loss, self.absolute = Mean(loss.numpy), Mean(lambda outputs, y: float(np.abs(outputs - y).mean()))
        self.actual: list[np.ndarray] = []  # some bytes an example, beside the x of it
        self.predicted: list[np.ndarray] = []

    def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None:
        self.loss.add(outputs, y)
        self.absolute.add(outputs, y)
        self.actual.append(y)
        self.predicted.append(outputs)

    def metrics(self) -> tuple[Metric, ...]:
        return (
            Metric("test/loss", self.loss.value(), direction="min"),
            Metric("test/mean_absolute_error", self.absolute.value(), direction="min"),
        )

    def intervals(self) -> Mapping[str, Interval]:
        """Of the mean absolute error. A root and R² are not means over examples."""
        if not self.independent:
            return {}
        actual, predicted = self._whole()
        found = by_examples(np.abs(predicted - actual).mean(axis=1))
        return {} if found is None else {"test/mean_absolute_error": found}

    def details(self) -> Details:
        """The errors in the unit of the targets; of several outputs a row for each."""
        actual, predicted = self._whole()
        absolute, squared = np.abs(predicted - actual).mean(axis=0), np.square(predicted - actual).mean(axis=0)
        spread, same = actual.var(axis=0), np.flatnonzero(np.ptp(actual, axis=0) == 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = 1 - squared / spread
        shares[same] = np.nan  # by its rounded mean a constant may have a tiny spread
        found = [Metric("test/root_mean_squared_error", float(np.sqrt(squared.mean())), direction="min")]
        if not len(same):
            found.append(Metric("test/r2", float(shares.mean()), direction="max"))
        rows = (("test root_mean_squared_error", figure(found[0].value)), ("test r2", _r2(shares, same)))
        columns = ("output", "mean absolute error", "root mean squared error", "r2")
        by_output = tuple(
            (str(number), figure(absolute[number]), figure(np.sqrt(squared[number])), _r2(shares[[number]], same))
            for number in range(len(shares))
        )
        tables = (Table("the test set by output", columns, by_output),) if len(shares) > 1 else ()
        return Details(tuple(found), tables, rows)

    def write(self, run: Run) -> None:
        """predictions.csv: a row for each example, in the order of the test set: its targets and the outputs."""
        actual, predicted = self._whole()
        with csv_file(run.artifact("predictions.csv")) as writer:
            several = actual.shape[1] > 1
            suffixes = [f"_{number}" if several else "" for number in range(actual.shape[1])]
            writer.writerow([f"{what}{suffix}" for what in ("actual", "predicted") for suffix in suffixes])
            writer.writerows(np.concatenate([actual, predicted], axis=1).tolist())

    def draw(self, run: Run, title: str) -> None:
        from pipeline.report import figures

        actual, predicted = self._whole()
        figures.against_actual(run.artifact("figures/predicted_against_actual.png"), actual, predicted, title)

    def _whole(self) -> tuple[np.ndarray, np.ndarray]:
        """Targets and outputs (N, outputs) of the whole test set, in its order, in float64."""
        return np.concatenate(self.actual).astype(np.float64), np.concatenate(self.predicted)


def _r2(shares: np.ndarray, same: np.ndarray) -> str:
    """R², in words where there is none, or where it is 0 at most. `same`: outputs whose targets are the same."""
    if np.isnan(shares).any():
        of = "" if len(shares) == 1 else f" of output {', '.join(map(str, same))}"
        return f"none: all targets{of} are the same"
    worse = "" if shares.mean() > 0 else "; no better than the targets' mean for every example"
    return f"{shares.mean():.4f}{worse}"
