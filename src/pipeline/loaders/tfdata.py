"""tf.data: map(normalise), batch, cache, prefetch, each of them a setting (row A7)."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts import Loader
from pipeline.datasets import Augment, Data
from pipeline.datasets.pictures import Pictures
from pipeline.errors import UserError
from pipeline.loaders import epoch_order
from pipeline.machine.free_memory import free_bytes
from pipeline.report.table import size as in_bytes
from pipeline.spec import spec


@spec
class TfData(Loader):
    """`map_calls` images are normalised at once and `prefetch` batches prepared ahead (`auto`: tf.data decides).

    `cache` keeps the normalised batches in memory, which fixes their order: it excludes `shuffle`. Augmented images are
    cached as they are before that, and normalised after it.
    `steps_per_execution`: optimizer steps before Python looks at their losses.
    """

    backends: ClassVar[tuple[str, ...]] = ("tensorflow",)
    augments: ClassVar[bool] = True

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
        if is_mapped(data.train.x):
            self._check_room(data, dtype)
        return TfBatches(self, data, dtype, batch_size, seed, start)

    def _check_room(self, data: Data, dtype: str) -> None:
        """Refuse a mapped set of which more is kept than memory has room for: all targets, and what is cached.

        The targets are there twice while TensorFlow copies them.
        """
        x, y, free = data.train.x, data.train.y, free_bytes()
        targets = y.size * data.targets(y[:1], dtype).itemsize
        stored = x.dtype if data.augment is not None else np.dtype("int32" if data.holds_tokens else dtype)
        cached = x.size * stored.itemsize + targets if self.cache else 0
        need = max(2 * targets, targets + cached)
        if need > free:
            instead = "loader=threads" if 2 * targets > free else "loader.cache=false or loader=threads"
            raise UserError(
                f"loader=tfdata{' loader.cache=true' if self.cache else ''}: needs {in_bytes(need)} of memory for the "
                f"examples of a mapped file, and {in_bytes(free)} are free; use {instead}"
            )


class TfBatches:
    """The pipeline, built once; only the stream of indices in front of it changes with the epoch."""

    def __init__(
        self, loader: TfData, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int]
    ) -> None:
        self.loader, self.data, self.dtype = loader, data, dtype
        self.batch_size, self.seed = batch_size, seed
        self.epoch, self.first = start
        self.kept: Any = None

    def __iter__(self) -> Any:
        pipeline = self.kept
        if pipeline is None:
            pipeline = self._pipeline()
            if self.loader.cache:
                pipeline = pipeline.cache()
            if not self.loader.shuffle:
                self.kept = pipeline
        if self.data.augment is not None:
            pipeline = self._augmented(pipeline, self.data.augment, self.epoch)
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
        stored, targets = stored_example(train.x), tf.constant(data.targets(train.y, self.dtype))

        @tf.autograph.experimental.do_not_convert  # keras/autograph.py says why
        def example(index: Any) -> tuple[Any, ...]:
            if data.augment is not None:
                return stored(index), targets[index], index
            return self.prepared(stored(index)), targets[index]

        indices = tf.data.Dataset.from_tensor_slices(order)
        return indices.map(example, num_parallel_calls=_tuned(self.loader.map_calls)).batch(self.batch_size)

    def prepared(self, x: Any) -> Any:
        """As `Data.inputs`, to the bit."""
        import tensorflow as tf

        data, dtype = self.data, self.dtype
        if data.normalisation is not None:
            subtracted, divisor = data.normalising
            x = tf.cast(tf.cast(x, "float64") - tf.constant(subtracted), dtype)
            return x / tf.constant(divisor.astype(dtype))
        x = tf.cast(x, "int32" if data.holds_tokens else dtype)
        return x if data.scale is None else x / tf.constant(data.scale, dtype)

    def _augmented(self, batches: Any, augment: Augment, epoch: int) -> Any:
        """Batches (x, y, rows) as they are in an epoch, (x, y)."""
        import tensorflow as tf

        def copied(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
            return augment(x.copy(), rows, epoch)  # x is the cache's memory, and an augmentation may write into x

        @tf.autograph.experimental.do_not_convert
        def augmented(x: Any, y: Any, rows: Any) -> tuple[Any, Any]:
            changed = tf.numpy_function(copied, (x, rows), x.dtype)
            changed.set_shape(x.shape)
            return self.prepared(changed), y

        return batches.map(augmented, num_parallel_calls=_tuned(self.loader.map_calls))


def is_mapped(array: Any) -> bool:
    """Whether the numbers lie in a file that is mapped, of whatever the array is a view."""
    held = array
    while held is not None:
        if isinstance(held, mmap.mmap):
            return True
        held = held.obj if isinstance(held, memoryview) else getattr(held, "base", None)
    return False


def stored_example(x: Any) -> Callable[[Any], Any]:
    """How an example is had by its number: from memory, from a mapped file, or from a file of its own."""
    import tensorflow as tf

    if isinstance(x, Pictures):
        paths = tf.constant(x.paths)
        return lambda index: _decoded(tf.io.read_file(paths[index]), x.shape[1:])
    if is_mapped(x):
        return lambda index: tf.ensure_shape(tf.numpy_function(x.__getitem__, [index], x.dtype), x.shape[1:])
    inputs = tf.constant(x)
    return lambda index: inputs[index]


def _decoded(content: Any, shape: tuple[int, ...]) -> Any:
    """The image (H, W, C) uint8 of a file's content; TensorFlow reads PNG, JPEG, BMP and GIF."""
    import tensorflow as tf

    return tf.ensure_shape(tf.io.decode_image(content, channels=shape[-1], expand_animations=False), shape)


def _tuned(value: int | str) -> int:
    import tensorflow as tf

    return tf.data.AUTOTUNE if isinstance(value, str) else value
