"""Batches as a training in TensorFlow takes them from a loader (engine_tensorflow.py), without the training."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.backends.shared.load_bench import DTYPE, Arrays, Batch, Source
from pipeline.contracts import Loader
from pipeline.datasets import Data
from pipeline.datasets.pictures import Pictures
from pipeline.loaders import blocks, epoch_order
from pipeline.loaders.memory import resident
from pipeline.loaders.tfdata import TfBatches, TfData, stored_example


class Feed:
    """TensorFlow on one device."""

    def __init__(self, place: str) -> None:
        self.on = "/CPU:0" if place == "cpu" else f"/{place.upper()}"
        self.copies = place != "cpu"

    def stream(self, loader: Loader, data: Data, batch_size: int, seed: int) -> Iterable[Batch]:
        if resident(loader, data):
            return Resident(self, data, batch_size, seed)
        return Streamed(self, loader.stream(data, DTYPE, batch_size, seed))

    def moved(self, batch: Any) -> Batch:
        with tf.device(self.on):
            x, y = map(tf.convert_to_tensor, batch)
            return (tf.identity(x), tf.identity(y)) if self.copies else (x, y)

    def wait(self) -> None:
        """On a CPU a batch is there when its call returns."""
        if self.copies:
            tf.test.experimental.sync_devices()

    def arrays(self, batch: Batch) -> Arrays:
        x, y = map(np.asarray, batch)
        return x, y

    def parts(self, source: Source, batch_size: int) -> dict[str, float]:
        """By what each adds to a tf.data pipeline of those before it, one example at a time, in one thread."""
        pipelines = _pipelines(source, batch_size)
        seconds = {part: _seconds(source, dataset) for part, dataset in pipelines.items()}
        taken = {part: seconds[part] - seconds[before] for before, part in itertools.pairwise(seconds)}
        source.begin()
        began = time.perf_counter()
        for batch in pipelines["batch"]:
            self.moved(batch)
        self.wait()
        return taken | {"hand over": time.perf_counter() - began - seconds["batch"]}


class Streamed:
    """A loader's batches on the device."""

    def __init__(self, feed: Feed, stream: Iterable[Any]) -> None:
        self.feed, self.stream = feed, stream

    def __iter__(self) -> Iterator[Batch]:
        return map(self.feed.moved, self.stream)


class Resident:
    """The whole set on the device, a batch gathered there by a compiled call for each; a training's are one program."""

    def __init__(self, feed: Feed, data: Data, batch_size: int, seed: int) -> None:
        self.feed = feed
        self.x, self.y = feed.moved((data.inputs(data.train.x, DTYPE), data.targets(data.train.y, DTYPE)))
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0
        self.gathered = tf.function(lambda rows: (tf.gather(self.x, rows), tf.gather(self.y, rows)))

    def __iter__(self) -> Iterator[Batch]:
        order = epoch_order(len(self.y), self.seed, self.epoch)
        self.epoch += 1
        with tf.device(self.feed.on):
            for rows in blocks(order, self.batch_size, 1):
                yield self.gathered(tf.constant(rows[0]))


def _pipelines(source: Source, batch_size: int) -> dict[str, Any]:
    """Pipelines that end after nothing, reading, decoding, scaling and batching.

    All but the last batch a single number of each example, so that nothing but the part itself takes its time.
    """
    data, stored = source.data, source.data.train.x
    order = epoch_order(len(data.train), source.seed, 0)[: source.examples]
    indices, example = tf.data.Dataset.from_tensor_slices(order), stored_example(stored)
    labels = tf.constant(data.targets(data.train.y, DTYPE))
    prepared = TfBatches(TfData(), data, DTYPE, batch_size, source.seed, (0, 0)).prepared
    parts: dict[str, Callable[[Any], Any]] = {"": lambda index: index + 1, "read": lambda index: _first(example(index))}
    if isinstance(stored, Pictures):
        paths = tf.constant(stored.paths)
        parts["decode"] = parts["read"]
        parts["read"] = lambda index: tf.strings.length(tf.io.read_file(paths[index]))
    parts["scale"] = lambda index: _first(prepared(example(index)))
    parts["batch"] = lambda index: (prepared(example(index)), labels[index])
    return {part: indices.map(mapped).batch(batch_size) for part, mapped in parts.items()}


def _first(x: Any) -> Any:
    return tf.reshape(x, [-1])[0]


def _seconds(source: Source, dataset: Any) -> float:
    """Seconds of a pass inside TensorFlow: nothing is handed to Python."""
    run = tf.function(lambda: dataset.reduce(np.int64(0), lambda count, *_: count + 1)).get_concrete_function()
    run()  # the first call prepares the program
    source.begin()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
