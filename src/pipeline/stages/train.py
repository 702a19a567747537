"""stage=train: train a network on whatever task the dataset is of, and measure it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pipeline.contracts import Stage
from pipeline.machine.capability import Resolved
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@spec
class Train(Stage):
    """What it trains on what is said by the other groups.

    `probe`: measure a step by itself afterwards, for the precision study: artifacts/probe/.
    """

    probe: bool = False

    imports: ClassVar[tuple[str, ...]] = ("pipeline.report.figures", "pipeline.runs.receipt")
    distributes: ClassVar[bool] = True

    def check(self, experiment: Experiment) -> None:
        """Refuse adapters for layers that the saved model does not have: in a grid before any cell begins."""
        if experiment.starting.adapters.layers and experiment.starting.start is not None:
            from pipeline.stages.start import check_adapters

            check_adapters(experiment.starting, experiment.config["model"])

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse a model of the user's own that cannot be trained on the data."""
        from pipeline.stages import data_checks

        data_checks.rehearse(experiment, resolved, self.task)

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train and measure. Raises UserError for data that do not fit and RunError where training cannot go on."""
        from pipeline.stages import course

        return course.train(experiment, resolved, run, probe=self.probe, task=self.task)
