"""stage=transformer: train a language model on text, and measure beside it what needs no training by gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pipeline.machine.capability import Resolved
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages.train import Train
from pipeline.tasks import Task
from pipeline.tasks.language_modelling import LanguageModelling

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


@spec
class Transformer(Train):
    """stage=train for a dataset of tokens; any other is refused.

    `baselines`: measure n-grams and xz on the same text (of a dataset of ours). `attention`: draw the maps of a
    sentence of the test text, of model=gpt.
    """

    task: ClassVar[type[Task] | None] = LanguageModelling
    headline: ClassVar[str] = "test/bits_per_byte"
    imports: ClassVar[tuple[str, ...]] = (*Train.imports, "pipeline.stages.beside_gpt")

    baselines: bool = True
    attention: bool = True

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train and measure. Raises as stage=train."""
        from pipeline.stages import beside_gpt, course

        result = course.train(experiment, resolved, run, probe=self.probe, task=self.task)
        found = [beside_gpt.utilization(experiment, resolved, run, result)]
        if self.baselines:
            found.append(beside_gpt.baselines(experiment))
        if self.attention:
            beside_gpt.draw_attention(experiment, run)
        metrics = [metric for one in found for metric in one.metrics]
        notes = [note for one in found for note in one.notes]
        rows = [row for one in found for row in one.table]
        tested = 1 + max(number for number, (name, _) in enumerate(result.table) if name.startswith("test "))
        return replace(
            result,
            metrics=(*result.metrics, *metrics),
            notes=(*result.notes, *notes),
            table=(*result.table[:tested], *rows, *result.table[tested:]),
        )
