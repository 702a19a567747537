"""Datasets of a user's own: the digits as a torch Dataset, a tf.data.Dataset and plain pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.datasets.digits import Digits
from pipeline.spec import spec


@spec
class Taken(Digits):
    """With a field whose name is a key that every dataset has."""

    normalise: bool = False


def whole() -> tuple[np.ndarray, np.ndarray]:
    data = Digits(validation=0).load(Path(), 0)
    return data.train.x[:400], data.train.y[:400]


def as_torch() -> Any:
    import torch

    x, y = whole()
    return torch.utils.data.TensorDataset(torch.from_numpy(np.moveaxis(x / np.float32(16), -1, 1)), torch.from_numpy(y))


def streamed() -> Any:
    """A stream that knows its length: it inherits __getitem__, which raises."""
    import torch

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(as_torch())

        def __len__(self) -> int:
            return len(as_torch())

    return Stream()


def in_batches() -> Any:
    import torch

    return torch.utils.data.DataLoader(as_torch(), batch_size=50)


def as_tf() -> Any:
    import tensorflow as tf

    x, y = whole()
    return tf.data.Dataset.from_tensor_slices((x / np.float32(16), y))


def endless() -> Any:
    return as_tf().repeat()


def endless_filtered() -> Any:
    return as_tf().repeat().filter(lambda _, y: y < 5).batch(2).unbatch().prefetch(1)


def filtered_and_repeated() -> Any:
    return as_tf().filter(lambda _, y: y < 5).repeat(2)


def taken_of_endless() -> Any:
    return endless_filtered().take(30)


def endless_behind() -> Any:
    return as_tf().concatenate(as_tf().repeat().filter(lambda _, y: y < 5))


def taken_by_tensorflow_1() -> Any:
    import tensorflow as tf

    pairs = tf.compat.v1.data.Dataset.from_tensor_slices(whole())
    return pairs.repeat().filter(lambda _, y: y < 5).take(30)


def as_mappings() -> Any:
    x, y = whole()
    return [{"pixels": one, "digit": label} for one, label in zip(x / np.float32(16), y, strict=True)]


def uneven() -> Any:
    return [(np.zeros(3), 0), (np.zeros(4), 1)]


def triples() -> Any:
    return [(1, 2, 3)]


def real() -> Any:
    return [(np.zeros(3), 0.5)]


def number() -> Any:
    return 7


def missing() -> Any:
    return Path("/nowhere/x.csv").read_text()


class Broken:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        raise ValueError(f"example {number} is damaged")


def uneven_targets() -> Any:
    return [(np.zeros(3), np.zeros(1)), (np.zeros(3), np.zeros(2))]


def columns() -> Any:
    return {"image": np.zeros((4, 3)), "label": np.zeros(4, np.int64)}


def needs_more(where: str) -> Any:
    return where
