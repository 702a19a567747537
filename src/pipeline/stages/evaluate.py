"""stage=evaluate: the test metrics of a saved run, measured again from its weights."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pipeline.contracts import Metric, Stage
from pipeline.contracts.physics import Problem
from pipeline.datasets.loading import check_saved, load_ahead, load_data
from pipeline.datasets.split import held_out
from pipeline.errors import UserError
from pipeline.experiment import metrics as named
from pipeline.machine.capability import Resolved
from pipeline.report.table import figure
from pipeline.runs import receipt
from pipeline.runs.records import read_config
from pipeline.runs.result import Result, metrics_of
from pipeline.runs.run import Run
from pipeline.runs.saved import check_outputs, saved_weights
from pipeline.spec import spec
from pipeline.stages.contamination import noted
from pipeline.stages.measuring import Measured, asks_the_data, measure, said_of_metrics, try_metrics

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@spec
class Evaluate(Stage):
    """No settings: the run is named by `run=<id>`."""

    starts_from_run: ClassVar[bool] = True

    def check(self, experiment: Experiment) -> None:
        """Refuse a run that has no test set."""
        if isinstance(experiment.dataset, Problem):
            raise UserError(
                "stage=evaluate with a run that solved a problem: its errors are in its result.json; "
                "stage=predict stage.points=points.csv gives its values at any points"
            )

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse metrics that cannot be had of the data."""
        if any(map(asks_the_data, experiment.training.metrics)):
            try_metrics(experiment.training.metrics, load_ahead(experiment))

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Measure. Raises UserError for a run without a readable model, or whose weights or data are others now."""
        source = Path(str(experiment.settings.run))
        saved, data = saved_weights(source), load_data(experiment)
        notes = check_saved(source, saved, data)
        judge = data.task.judge(experiment.loss)
        predict = experiment.backend.load().predictor(experiment, data.task.shapes, saved, resolved)

        def check(outputs: np.ndarray, first: int) -> None:
            check_outputs(outputs, "test example {}", first, source, resolved.precision)

        found = measure(experiment, resolved, data, predict, judge, check)
        of_data = data.task.notes(data.train.y, data.test.y)
        written = receipt.of_saved(experiment, resolved, saved, data.sha256)
        run.journal.write_receipt({**written, "held_out": held_out(data)})
        return Result(
            metrics=found.kept,
            table=tuple(_rows(source, found, resolved, _changed(source, experiment.training.metrics))),
            notes=(*notes, *noted(source), *said_of_metrics(experiment, data.task), *data.notes, *of_data),
            details=found.details.tables,
            failed=found.fault,
        )


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


def _rows(source: Path, found: Measured, resolved: Resolved, changed: Container[str]) -> list[tuple[str, str]]:
    """Each metric beside the one that the run reported when it was trained. `changed`: those with other settings."""
    then = metrics_of(source)
    rows = []
    for metric in found.metrics:
        old = then[metric.name].value if metric.name in then else None
        remark = "" if old is None else f"  {_beside(metric.value, old)}"
        if old is not None and metric.name in changed:
            remark = f"  when trained, with other settings: {figure(old)}"
        rows.append((metric.name.replace("test/", "test "), f"{figure(metric.value)}{remark}"))
    return [
        *rows,
        *(row for row in found.details.rows if row[0] not in dict(rows)),
        ("run", source.name),
        ("device", str(resolved.place)),
        ("precision", resolved.precision),
    ]


def _beside(value: float, old: float) -> str:
    """`old`, and by how much `value` differs."""
    if value == old:
        return "the same as when trained"
    return f"when trained: {figure(old)} ({value - old:+.1e})"
