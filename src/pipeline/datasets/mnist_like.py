"""What MNIST and the sets that are stored like it share: four IDX files of 70,000 grey images (28, 28, 1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.contracts import Dataset
from pipeline.datasets import Data, Split
from pipeline.datasets.idx import parse_idx
from pipeline.datasets.published import PublishedFiles
from pipeline.datasets.split import check_sizes, hash_splits, hold_out
from pipeline.spec import spec
from pipeline.tasks import Task
from pipeline.tasks.classification import Classification

TRAIN_SIZE = 60_000  # the test set has 10,000


@dataclass(frozen=True)
class Published(PublishedFiles):
    """A set as published. `files`: train images, train labels, test images, test labels."""

    classes: tuple[str, ...]


@spec
class MnistLike(Dataset):
    """The settings of every such set; each is a separate spec that says what is `published`."""

    published: ClassVar[Published]
    locations: ClassVar[tuple[str, ...]] = ("cache", "folder")

    task: ClassVar[type[Task]] = Classification

    validation: int = 5000
    """Training images held out for validation, drawn by the experiment's seed."""
    train_size: int | None = None
    """Use only this many of the training images that are left: for quick runs. None is all."""
    cache: str | None = None
    """Folder that fetched files are kept in. None is the user's cache (see `machine.cache_folder`)."""
    folder: str | None = None
    """Folder of yours with the four files, .gz or raw: read from there, nothing is fetched."""

    def __post_init__(self) -> None:
        check_sizes(self.validation, self.train_size, TRAIN_SIZE)

    def load(self, root: Path, seed: int) -> Data:
        """Read the files (fetching them first if `root` lacks them) and hold out the validation images by `seed`."""
        whole, test = self._read(root)
        train, validation = hold_out(whole, self.validation, self.train_size, seed)
        of_images = Classification((28, 28, 1), self.published.classes)
        return Data(train, validation, test, of_images, hash_splits(whole, test), scale=255.0)

    def _read(self, root: Path) -> tuple[Split, Split]:
        """The whole training set and the test set."""
        files = self.published.files
        contents = self.published.read(root, self.folder)
        arrays = [parse_idx(content, file.name) for file, content in zip(files, contents, strict=True)]
        return _split(*arrays[:2]), _split(*arrays[2:])


def _split(images_NHW: np.ndarray, labels_N: np.ndarray) -> Split:
    return Split(images_NHW[..., np.newaxis], labels_N.astype(np.int64))
