"""Diabetes: 442 patients with ten measurements each, and how far the disease had gone a year later.

Efron, Hastie, Johnstone and Tibshirani, "Least angle regression", Annals of Statistics 32, 2004, section 2. They come
with scikit-learn, whose documentation says what the columns are.
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
from pipeline.tasks.regression import Regression

SIZE, MEASUREMENTS = 442, 10
TEST_SIZE = 88  # a fifth
TRAIN_SIZE = SIZE - TEST_SIZE
TASK = Regression((MEASUREMENTS,), 1)


@spec
class Diabetes(Dataset):
    """442 rows of ten numbers in their own units, 354 of them for training; the target is a number from 25 to 346."""

    task: ClassVar[type[Task]] = Regression

    validation: int = 54
    """Training rows held out for validation, drawn by the experiment's seed."""
    train_size: int | None = None
    """Use only this many of the training rows that are left. None is all."""

    def __post_init__(self) -> None:
        check_sizes(self.validation, self.train_size, TRAIN_SIZE)

    def load(self, root: Path, seed: int) -> Data:
        """Read scikit-learn's files and hold out the validation rows by `seed`. Nothing is cached below `root`."""
        return scikit_learn.divided(_whole(), TEST_SIZE, self.validation, self.train_size, seed, TASK)

    def load_pool(self, root: Path) -> Data:
        """All patients, in the order of the files."""
        return scikit_learn.undivided(_whole(), TEST_SIZE, TASK)


def _whole() -> Split:
    x = _read("diabetes_data_raw.csv.gz", (SIZE, MEASUREMENTS))
    return Split(x, _read("diabetes_target.csv.gz", (SIZE, 1)))


def _read(name: str, shape: tuple[int, int]) -> np.ndarray:
    path = scikit_learn.file(name, "diabetes")
    found = np.loadtxt(path, dtype=np.float32, ndmin=2)
    if found.shape != shape:
        raise UserError(f"{path}: expected numbers of shape {shape}, found {found.shape}; reinstall scikit-learn")
    return found
