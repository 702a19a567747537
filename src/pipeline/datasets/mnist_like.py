"""What MNIST and the sets that are stored like it share: four IDX files of 70,000 grey images (28, 28, 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.datasets import Split
from pipeline.datasets.idx import parse_idx
from pipeline.datasets.published_images import Published, PublishedImages
from pipeline.datasets.sources import File, Source
from pipeline.spec import spec


def published(name: str, files: Sequence[File], sources: Sequence[Source], classes: tuple[str, ...]) -> Published:
    """Such a set, which has 60,000 training images and 10,000 of the test."""
    return Published(name, files, sources, classes, (28, 28, 1), 60_000, offline="digits")


@spec
class MnistLike(PublishedImages):
    """The files are in this order: training images, training labels, test images, test labels."""

    def splits(self, contents: Sequence[np.ndarray]) -> tuple[Split, Split]:
        files = self.published.files
        arrays = [parse_idx(content, file.name) for file, content in zip(files, contents, strict=True)]
        return _split(*arrays[:2]), _split(*arrays[2:])


def _split(images_NHW: np.ndarray, labels_N: np.ndarray) -> Split:
    return Split(images_NHW[..., np.newaxis], labels_N.astype(np.int64))
