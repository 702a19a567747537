"""Batches gathered and scaled on the host, ahead of the step, by Python threads: for data that does not fit the device.

NumPy releases the interpreter lock while it copies, so threads overlap with the step; no process is forked, which
neither TensorFlow nor JAX would survive.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from pipeline.contracts import Loader
from pipeline.datasets import Data
from pipeline.loaders import ahead, blocks, epoch_order
from pipeline.spec import spec

Batch = tuple[np.ndarray, np.ndarray]


@spec
class Threads(Loader):
    """`workers` threads prepare up to `prefetch` batches ahead.

    `steps_per_execution`: optimizer steps before Python looks at their losses.
    """

    backends: ClassVar[tuple[str, ...]] = ("torch", "tensorflow", "jax")
    augments: ClassVar[bool] = True
    distributes: ClassVar[bool] = True

    workers: Annotated[int, Field(gt=0, le=1024)] = 1
    prefetch: PositiveInt = 4
    steps_per_execution: PositiveInt = 64

    def stream(self, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int] = (0, 0)) -> Batches:
        """(x, y) batches; each pass is the next epoch."""
        return Batches(self, data, dtype, batch_size, seed, start)


class Batches:
    """The stream of a Threads loader."""

    def __init__(
        self, loader: Threads, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int]
    ) -> None:
        self.loader, self.data, self.dtype = loader, data, dtype
        self.batch_size, self.seed = batch_size, seed
        self.epoch, self.first = start

    def _batch(self, rows: np.ndarray, *, epoch: int) -> Batch:
        batch = self.data.training(rows, epoch)
        return self.data.inputs(batch.x, self.dtype), self.data.targets(batch.y, self.dtype)

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch
        order = epoch_order(len(self.data.train), self.seed, epoch)
        order = order[self.first * self.batch_size :]
        self.epoch, self.first = epoch + 1, 0
        indices = (block[0] for block in blocks(order, self.batch_size, 1))
        return ahead(partial(self._batch, epoch=epoch), indices, self.loader.prefetch, self.loader.workers)
