"""tf.data: map(normalise), batch, cache, prefetch, each of them a setting (row A7)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts import Loader
from pipeline.datasets import Data
from pipeline.errors import UserError
from pipeline.loaders import epoch_order
from pipeline.spec import spec


@spec
class TfData(Loader):
    """`map_calls` images are normalised at once and `prefetch` batches prepared ahead (`auto`: tf.data decides).

    `cache` keeps the normalised batches in memory, which fixes their order: it excludes `shuffle`.
    `steps_per_execution`: optimizer steps before Python looks at their losses.
    """

    backends: ClassVar[tuple[str, ...]] = ("tensorflow",)

    map_calls: PositiveInt | Literal["auto"] = "auto"
    cache: bool = True
    shuffle: bool = False
    prefetch: NonNegativeInt | Literal["auto"] = "auto"
    steps_per_execution: PositiveInt = 64

    def __post_init__(self) -> None:
        if self.cache and self.shuffle:
            raise ValueError("shuffle=true: the cache keeps the first epoch's order; set loader.cache=false with it")

    def stream(self, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int] = (0, 0)) -> TfBatches:
        """Batches by tf.data; each pass is the next epoch."""
        if isinstance(data.train.x, np.memmap):
            raise UserError(
                "loader=tfdata: puts the whole set into memory, and this one is a mapped file; use loader=threads"
            )
        return TfBatches(self, data, dtype, batch_size, seed, start)


class TfBatches:
    """The pipeline, built once; only the stream of indices in front of it changes with the epoch."""

    def __init__(
        self, loader: TfData, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int]
    ) -> None:
        self.loader, self.data, self.dtype = loader, data, dtype
        self.batch_size, self.seed = batch_size, seed
        self.epoch, self.first = start
        self.cached: Any = None

    def __iter__(self) -> Any:
        pipeline = self.cached
        if pipeline is None:
            pipeline = self._pipeline()
            if self.loader.cache:
                self.cached = pipeline = pipeline.cache()
        if self.first:  # a cache is filled by whole passes: the batches are made and left out
            pipeline = pipeline.skip(self.first)
        self.epoch, self.first = self.epoch + 1, 0
        if self.loader.prefetch != 0:
            pipeline = pipeline.prefetch(_tuned(self.loader.prefetch))
        return iter(pipeline)

    def _pipeline(self) -> Any:
        import tensorflow as tf

        epoch = self.epoch if self.loader.shuffle else 0
        order = epoch_order(len(self.data.train), self.seed, epoch)
        data, train = self.data, self.data.train
        inputs, targets = tf.constant(train.x), tf.constant(data.targets(train.y, self.dtype))
        tokens = data.task.shapes.vocabulary is not None

        def normalise(index: Any) -> tuple[Any, Any]:
            x = tf.cast(inputs[index], "int32" if tokens else self.dtype)
            return x if data.scale is None else x / tf.constant(data.scale, self.dtype), targets[index]

        indices = tf.data.Dataset.from_tensor_slices(order)
        return indices.map(normalise, num_parallel_calls=_tuned(self.loader.map_calls)).batch(self.batch_size)


def _tuned(value: int | str) -> int:
    import tensorflow as tf

    return tf.data.AUTOTUNE if isinstance(value, str) else value
