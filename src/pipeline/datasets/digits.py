"""Digits: the 1,797 small handwritten digits that come with scikit-learn. They need no network.

Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
https://archive.ics.uci.edu/dataset/80
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.contracts import Dataset
from pipeline.datasets import Data, Split, scikit_learn
from pipeline.datasets.split import check_sizes
from pipeline.errors import UserError
from pipeline.spec import spec
from pipeline.tasks import Task
from pipeline.tasks.classification import Classification

SIZE = 1797
TEST_SIZE = 360  # a fifth
TRAIN_SIZE = SIZE - TEST_SIZE
CLASSES = tuple("0123456789")
SHAPE = (8, 8, 1)
TASK = Classification(SHAPE, CLASSES)
WHITE = 16.0


@spec
class Digits(Dataset):
    """1,797 grey images (8, 8, 1) of handwritten digits, pixels 0 to 16, 1,437 of them for training."""

    task: ClassVar[type[Task]] = Classification

    validation: int = 180
    """Training images held out for validation, drawn by the experiment's seed."""
    train_size: int | None = None
    """Use only this many of the training images that are left: for quick runs. None is all."""

    def __post_init__(self) -> None:
        check_sizes(self.validation, self.train_size, TRAIN_SIZE)

    def load(self, root: Path, seed: int) -> Data:
        """Read scikit-learn's file and hold out the validation images by `seed`. Nothing is cached below `root`."""
        return scikit_learn.divided(
            Split(*_read()), TEST_SIZE, self.validation, self.train_size, seed, TASK, scale=WHITE
        )

    def load_pool(self, root: Path) -> Data:
        """All images, in the order of the file."""
        return scikit_learn.undivided(Split(*_read()), TEST_SIZE, TASK, scale=WHITE)


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Images (1797, 8, 8, 1) uint8 and labels (1797,) int64."""
    # The file that `sklearn.datasets.load_digits` reads. A test holds the two against each other.
    path = scikit_learn.file("digits.csv.gz", "digits")
    rows = np.loadtxt(path, delimiter=",", dtype=np.uint8)  # 64 pixels, then the class
    if rows.shape != (SIZE, 65):
        raise UserError(f"{path}: expected {SIZE} rows of 65 numbers, found {rows.shape}; reinstall scikit-learn")
    return rows[:, :64].reshape(-1, *SHAPE), rows[:, 64].astype(np.int64)
