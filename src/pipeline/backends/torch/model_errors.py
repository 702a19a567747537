"""What a user's model raises in a step of the training: one message, with the step and the batch that it was given."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.backends.shared.model_errors import of_model
from pipeline.backends.torch.step import Step
from pipeline.errors import RunError

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


def as_error_of_model(
    error: Exception, experiment: Experiment, step: Step, number: int, examples: int, artifacts: Path
) -> RunError | None:
    """An exception of the step `number` on a batch of `examples`, in words; None where the model is not the cause.

    It is if the net of a user's model was called, or its gradients were under way, and it was not this package's own
    code that raised. Memory that runs out is the machine's.
    """
    return of_model(error, _in_model(error, step), experiment, number, examples, artifacts)


def _in_model(error: Exception, step: Step) -> bool:
    """Whether it was raised below a call of the net, or below the backward pass."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(frame.f_locals.get("self") is step.net or frame.f_code is Step.backward.__code__ for frame in frames)
