"""The default: the whole set lies on the device as tensors, and a batch is gathered there. For data that fits.

Augmented images are other ones in each epoch: batches of them come from the host, as with `threads`.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from pipeline.contracts import Loader
from pipeline.datasets import Data
from pipeline.loaders.threads import Batches, Threads
from pipeline.spec import spec


@spec
class Memory(Loader):
    """`steps_per_execution` optimizer steps run before Python looks at their losses (Keras's term and meaning)."""

    backends: ClassVar[tuple[str, ...]] = ("torch", "tensorflow", "jax")
    augments: ClassVar[bool] = True
    distributes: ClassVar[bool] = True

    steps_per_execution: PositiveInt = 64

    def stream(self, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int] = (0, 0)) -> Batches:
        """Batches that are no longer those that lie on the device: made ahead of the step, by one thread."""
        return Threads().stream(data, dtype, batch_size, seed, start)


def resident(loader: Loader, data: Data) -> bool:
    """Whether a training takes its batches from examples that lie on the device."""
    return isinstance(loader, Memory) and data.augment is None
