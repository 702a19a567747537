"""stage=evaluate: the test metrics of a saved run, measured again from its weights, or what it has on other data."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from pipeline.contracts import Metric, Stage
from pipeline.contracts.physics import Problem
from pipeline.datasets import Data
from pipeline.datasets import other as other_data
from pipeline.datasets.loading import check_saved, load_ahead, load_data
from pipeline.datasets.split import held_out
from pipeline.errors import UserError
from pipeline.experiment import metrics as named
from pipeline.machine.capability import Resolved
from pipeline.report.table import figure
from pipeline.runs import receipt
from pipeline.runs.beside import with_figures
from pipeline.runs.judged_on import OTHER_DATA
from pipeline.runs.listing import OF_TASKS
from pipeline.runs.other_data import SOLVED
from pipeline.runs.records import read_config
from pipeline.runs.result import Result, metrics_of
from pipeline.runs.run import Run
from pipeline.runs.saved import check_outputs, saved_weights
from pipeline.runs.source_rows import source_rows
from pipeline.spec import spec
from pipeline.stages.contamination import noted, said_of_other_data
from pipeline.stages.measuring import Measured, asks_the_data, input_dtype, measure, said_of_metrics, try_metrics
from pipeline.stages.other_data_result import of_other_data
from pipeline.stages.training_table import precision_row

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@spec
class Evaluate(Stage):
    """The run is named by `run=<id>`.

    `split`: of other data, which `dataset` names, all examples, or their test alone.
    """

    split: Literal["all", "test"] = "all"

    starts_from_run: ClassVar[bool] = True
    takes_other_data: ClassVar[bool] = True
    otherwise: ClassVar[tuple[str, ...]] = tuple(f"{OTHER_DATA}/{name}" for name in (*OF_TASKS, "loss"))

    def check(self, experiment: Experiment) -> None:
        """Refuse a run that has no test set."""
        if isinstance(experiment.dataset, Problem):
            raise UserError(SOLVED)

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse a split of the run's own data: of these it has been trained on all but the test."""
        if "stage.split" in keys and other_data.named(experiment) is None:
            if "dataset" in keys:
                raise UserError(
                    f"stage.split={self.split}: these data are the run's own, of which the test is measured without "
                    "it; leave it out"
                )
            raise UserError(
                f"stage.split={self.split} without dataset: is for other data than the run's, of which the test is "
                "measured; name them by dataset=<choice>, or leave it out"
            )

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse other data that the model does not take, and metrics that cannot be had of the data."""
        other = other_data.load_other_ahead(experiment, alone=self.split == "test")
        if any(map(asks_the_data, experiment.training.metrics)):
            try_metrics(experiment.training.metrics, load_ahead(experiment) if other is None else other)

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Measure. Raises UserError for a run without a readable model, or whose weights or data are others now."""
        source = Path(str(experiment.settings.run))
        saved, other = saved_weights(source), other_data.load_other(experiment, alone=self.split == "test")
        data = load_data(experiment) if other is None else other
        if other is None:
            notes = (*check_saved(source, saved, data), *noted(source))
        else:
            trained_on = said_of_other_data(source, experiment, data, whole=self.split == "all")
            notes = (*other_data.check_other(source, saved), *trained_on)
        judge = data.task.judge(experiment.loss)
        predict = experiment.backend.load().predictor(experiment, data.task.shapes, saved, resolved)

        def check(outputs: np.ndarray, first: int) -> None:
            check_outputs(outputs, "test example {}", first, source, resolved.precision)

        found = measure(experiment, resolved, data, predict, judge, check, run)
        seen = predict.observe(
            data.inputs(data.test.x[: experiment.training.evaluation_batch_size], input_dtype(resolved))
        )
        of_data = data.task.notes(data.train.y, data.test.y) if other is None else ()
        written = receipt.of_saved(experiment, resolved, saved, data.sha256, seen)
        receipt.refuse(receipt.problems(written), experiment)
        run.journal.write_receipt({**written, "held_out": held_out(data)})
        on = None if other is None else self._said_of(experiment, other)
        precision = precision_row(experiment, resolved, seen)
        rows = _rows(source, found, resolved, _changed(source, experiment.training.metrics), on, precision)
        result = Result(
            metrics=found.kept,
            table=tuple(rows),
            notes=(*notes, *said_of_metrics(experiment, data.task), *data.notes, *of_data),
            details=found.details.tables,
            failed=found.fault,
        )
        write = partial(judge.write, run)
        if other is None:  # the run has the figures of that test set
            return with_figures(result, write, what="predictions: not written")
        result = with_figures(of_other_data(result), write, what="predictions: not written")
        draw = partial(judge.draw, run, f"{source.name} on other data")
        return with_figures(result, draw, what="other data: not drawn")

    def _said_of(self, experiment: Experiment, other: Data) -> str:
        which = "all" if self.split == "all" else "the test set:"
        data = other_data.named(experiment, whole=self.split == "all")
        return f"{data}: {which} {other_data.counted(other)}; not the run's own test set"


def _changed(source: Path, now: Iterable[Metric]) -> set[str]:
    """The names in the result of the metrics that have other settings, or are of another class, than when trained."""
    try:
        saved = named.metrics_of(read_config(source)["training"]["metrics"])
    except (KeyError, TypeError, UserError):  # a config of another version, or a module that is not here
        saved = ()
    then, asked = (
        {f"test/{named.name_of(one)}": one for one in metrics if not named.is_judges(one)}
        for metrics in (saved if isinstance(saved, tuple) else (), now)
    )
    return {name for name in {**then, **asked} if then.get(name) != asked.get(name)}


def _rows(
    source: Path, found: Measured, resolved: Resolved, changed: Container[str], on: str | None, precision: str
) -> list[tuple[str, str]]:
    """Each metric beside the one that the run reported when it was trained. `changed`: those with other settings.

    `on`: what was measured on, where that is not the run's test set.
    """
    then = metrics_of(source)
    rows = []
    for metric in found.metrics:
        old = then[metric.name].value if metric.name in then else None
        remark = "" if old is None else f"  {_beside(metric.value, old)}"
        if old is not None and on is not None:
            remark = f"  its own test set, when trained: {figure(old)}"
        if old is not None and metric.name in changed:
            remark = f"  when trained, with other settings: {figure(old)}"
        rows.append((metric.name.replace("test/", "test "), f"{found.text(metric)}{remark}"))
    return [
        *rows,
        *(row for row in found.details.rows if row[0] not in dict(rows)),
        *([] if on is None else [("measured on", on)]),
        *source_rows(source),
        ("device", str(resolved.place)),
        ("precision", precision),
    ]


def _beside(value: float, old: float) -> str:
    """`old`, and by how much `value` differs."""
    if value == old:
        return "the same as when trained"
    return f"when trained: {figure(old)} ({value - old:+.1e})"
