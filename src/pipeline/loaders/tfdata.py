"""tf.data: map(normalise), batch, cache, prefetch, each of them a setting (row A7)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts import Loader
from pipeline.datasets import Split
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

    def stream(self, split: Split, scale: float, dtype: str, batch_size: int, seed: int) -> TfBatches:
        """Batches by tf.data; each pass is the next epoch."""
        return TfBatches(self, split, scale, dtype, batch_size, seed)


class TfBatches:
    """The pipeline, built once; only the stream of indices in front of it changes with the epoch."""

    def __init__(self, loader: TfData, split: Split, scale: float, dtype: str, batch_size: int, seed: int) -> None:
        self.loader, self.split, self.scale, self.dtype = loader, split, scale, dtype
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0
        self.cached: Any = None

    def __iter__(self) -> Any:
        pipeline = self.cached
        if pipeline is None:
            pipeline = self._pipeline()
            if self.loader.cache:
                self.cached = pipeline = pipeline.cache()
        self.epoch += 1
        if self.loader.prefetch != 0:
            pipeline = pipeline.prefetch(_tuned(self.loader.prefetch))
        return iter(pipeline)

    def _pipeline(self) -> Any:
        import tensorflow as tf

        epoch = self.epoch if self.loader.shuffle else 0
        order = epoch_order(len(self.split), self.seed, epoch)
        images, labels = tf.constant(self.split.x), tf.constant(self.split.y)

        def normalise(index: Any) -> tuple[Any, Any]:
            return tf.cast(images[index], self.dtype) / tf.constant(self.scale, self.dtype), labels[index]

        indices = tf.data.Dataset.from_tensor_slices(order)
        return indices.map(normalise, num_parallel_calls=_tuned(self.loader.map_calls)).batch(self.batch_size)


def _tuned(value: int | str) -> int:
    import tensorflow as tf

    return tf.data.AUTOTUNE if isinstance(value, str) else value
