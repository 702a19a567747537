"""What sets of images share whose authors fixed the files and the test set: a share of the rest is held out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.contracts import Dataset
from pipeline.datasets import Data, Split
from pipeline.datasets.published import PublishedFiles
from pipeline.datasets.split import check_sizes, hash_splits, hold_out
from pipeline.spec import spec
from pipeline.tasks import Task
from pipeline.tasks.classification import Classification


@dataclass(frozen=True)
class Published(PublishedFiles):
    """A set as published. `image`: (height, width, channels). `training`: how many images are not of the test."""

    classes: tuple[str, ...]
    image: tuple[int, int, int]
    training: int


@spec
class PublishedImages(Dataset):
    """The settings of every such set; each is a separate spec that says what is `published`."""

    published: ClassVar[Published]
    locations: ClassVar[tuple[str, ...]] = ("cache", "folder")

    task: ClassVar[type[Task]] = Classification
    fixed_test: ClassVar[bool] = True

    validation: int = 5000
    """Training images held out for validation, drawn by the experiment's seed."""
    train_size: int | None = None
    """Use only this many of the training images that are left: for quick runs. None is all."""
    cache: str | None = None
    """Folder that fetched files are kept in. None is the user's cache (see `machine.cache_folder`)."""
    folder: str | None = None
    """Folder of yours with the files, .gz or raw: read from there, nothing is fetched."""

    def __post_init__(self) -> None:
        check_sizes(self.validation, self.train_size, self.published.training)

    def load(self, root: Path, seed: int) -> Data:
        """Read the files (fetching them first if `root` lacks them) and hold out the validation images by `seed`."""
        whole, test = self.splits(self.published.read(root, self.folder))
        train, validation = hold_out(whole, self.validation, self.train_size, seed)
        of_images = Classification(self.published.image, self.published.classes)
        return Data(train, validation, test, of_images, hash_splits(whole, test), scale=255.0)

    @abstractmethod
    def splits(self, contents: Sequence[np.ndarray]) -> tuple[Split, Split]:
        """The whole training set and the test set, images (N, H, W, C) uint8, of the files' contents, in order."""
