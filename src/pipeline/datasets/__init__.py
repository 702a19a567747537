"""Datasets: one file each. A dataset is a spec whose `load` gives NumPy arrays; nothing here knows a framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.datasets.normalisation import Normalisation, normalised
from pipeline.tasks import Task

# (stored images x (B, H, W, C), which training examples they are (B,), an epoch) -> the images as they are in it
Augment = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Split:
    """Inputs `x` (N, ...) as stored and what they are compared with, `y` (N, ...): in memory or memory-mapped."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Data:
    """Three splits of one task. `scale` is what images are divided by to lie in [0, 1]; None: x enters as it is.

    `sha256` hashes what was read, before the seed split it: it shows whether two runs had the same data to draw from.
    `augment`: what makes training images as they are in an epoch, where they are augmented. `normalisation`: what is
    subtracted from x, once it is scaled, and what that is divided by. `part`: which rows of a training batch of so many
    are made here, where other processes make the others. `notes`: what is odd about what was read, for people.
    `held_out`: what tells the validation and the test from those of another split, where their examples do not say
    it (the same text is cut into other sequences). `columns`: the names of an example's numbers, where they have any.
    """

    train: Split
    validation: Split
    test: Split
    task: Task
    sha256: str
    scale: float | None = None
    augment: Augment | None = None
    normalisation: Normalisation | None = None
    part: Callable[[int], slice] | None = None
    notes: tuple[str, ...] = ()
    held_out: Mapping[str, str] | None = None
    columns: tuple[str, ...] = ()

    def training(self, rows: np.ndarray, epoch: int) -> Split:
        """The training examples of a batch, `rows` (B,), as they are in an epoch (from 0): a copy."""
        rows = rows if self.part is None else rows[self.part(len(rows))]
        x = self.train.x[rows]
        return Split(x if self.augment is None else self.augment(x, rows, epoch), self.train.y[rows])

    def inputs(self, x: np.ndarray, dtype: str = "float32") -> np.ndarray:
        """A batch of x, or one, as a model takes it: scaled, and normalised where the data are."""
        if self.normalisation is None:
            return self.scaled(x, dtype)
        return normalised(x, *self.normalising, dtype)

    def scaled(self, x: np.ndarray, dtype: str = "float32") -> np.ndarray:
        """A batch of x before it is normalised: tokens int32, everything else divided by `scale`, in `dtype`."""
        if self.holds_tokens:
            return np.asarray(x, np.int32)
        if self.scale is None:
            return np.asarray(x, dtype)
        return np.divide(x, np.dtype(dtype).type(self.scale), dtype=dtype)

    @cached_property
    def normalising(self) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted from x as it is stored, and what it is then divided by, of normalised data."""
        assert self.normalisation is not None
        return self.normalisation.steps(self.scale, self.task.shapes.x)

    @cached_property
    def holds_tokens(self) -> bool:
        """Whether x holds integers below a vocabulary."""
        return self.task.shapes.vocabulary is not None

    def targets(self, y: np.ndarray, dtype: str = "float32") -> np.ndarray:
        """A batch of y as a loss takes it: classes and tokens int64, real numbers in `dtype`."""
        return np.asarray(y, np.int64 if y.dtype.kind in "iu" else dtype)
