"""What a user's model raises in a step of a training on Keras: in one message."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.backends.keras.net import called
from pipeline.backends.shared.model_errors import of_model
from pipeline.backends.shared.progress import Watch

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

OF_A_LAYER = "Exception encountered when calling "  # Keras's, of whatever is raised while a layer is called


@contextlib.contextmanager
def model_explained(experiment: Experiment, watch: Watch, number: int, examples: int) -> Iterator[None]:
    """For the steps from `number` on, on batches of `examples`: a compiled one is traced with the first of a size.

    Raises RunError in place of what the user's model raises.
    """
    try:
        yield
    except Exception as error:
        said = of_model(error, _in_model(error), experiment, number, examples, watch.run.folder / "artifacts")
        if said is None:
            raise
        raise said from error


def _in_model(error: Exception) -> bool:
    """Whether it was raised below a call of the model; on JAX the outermost layer is called without Keras's words."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return OF_A_LAYER in str(error) or any(frame.f_code is called.__code__ for frame in frames)
