"""Whether what a step of the training raises comes from the model."""

from __future__ import annotations

import traceback

from pipeline.backends.torch.step import Step


def in_model(error: Exception, step: Step) -> bool:
    """Whether an exception of a step was raised below a call of the net, or below the backward pass."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(frame.f_locals.get("self") is step.net or frame.f_code is Step.backward.__code__ for frame in frames)
