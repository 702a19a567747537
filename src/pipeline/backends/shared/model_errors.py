"""What a user's model raises in a step of the training: one message, with the step and the batch that it was given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import Readable, RunError, plural
from pipeline.machine.memory import is_out_of_memory
from pipeline.runs.user_errors import as_run_error
from pipeline.spec import choice, is_shipped

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


def of_model(
    error: Exception, in_model: bool, experiment: Experiment, number: int, examples: int, artifacts: Path
) -> RunError | None:
    """An exception of the step `number` on a batch of `examples`, in words; None where a user's model is not the cause.

    `in_model`: whether it was raised while the net was called, or its gradients were under way. Memory that runs out is
    the machine's.
    """
    if isinstance(error, Readable) or is_out_of_memory(error):
        return None
    if is_shipped(experiment.data_model) or not in_model:
        return None
    batch = f"a batch of {plural(examples, 'example')}"
    if examples == 1 < experiment.training.batch_size:
        batch += " (the last of an epoch; choose another training.batch_size)"
    return as_run_error(error, f"model={choice(experiment.data_model)}, in step {number:,} on {batch},", artifacts)
