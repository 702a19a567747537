"""stage=seq2seq: train a model that reads one sequence and writes another, and draw what it attends to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pipeline.machine.capability import Resolved
from pipeline.runs.beside import with_figures
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages.train import Train

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.tasks import Task


@spec
class Seq2seq(Train):
    """stage=train for a dataset of pairs of sequences; any other is refused.

    `attention`: draw what the decoder of model=encoder_decoder attends to in the first source of the test set.
    """

    headline: ClassVar[str] = "test/exact_match"
    imports: ClassVar[tuple[str, ...]] = (*Train.imports, "pipeline.stages.cross_attention")

    attention: bool = True

    @property
    def task(self) -> type[Task]:
        from pipeline.tasks.sequence_to_sequence import SequenceToSequence

        return SequenceToSequence

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train and measure. Raises as stage=train."""
        from pipeline.stages import cross_attention, training_table

        result = super().run(experiment, resolved, run)
        if not self.attention:
            return result
        draw = partial(cross_attention.draw, experiment, run)
        return training_table.timed_to_now(run, with_figures(result, draw, what="attention: not drawn"))
