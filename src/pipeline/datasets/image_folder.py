"""Images of your own: a folder with a subfolder for each class; or train/ and test/ (and validation/) with such."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from pipeline.contracts import Dataset
from pipeline.datasets import Data
from pipeline.datasets.own import classification
from pipeline.datasets.pixels import pixels
from pipeline.errors import UserError
from pipeline.spec import spec
from pipeline.tasks import Task
from pipeline.tasks.classification import Classification

Share = Annotated[float, Field(ge=0, lt=1)]
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
PARTS = ("train", "validation", "test")


@spec
class ImageFolder(Dataset):
    """`size`: height and width to which every image is resized. `channels`: 1 for grey, 3 for colours.

    `validation`, `test`: the share of the training images held out where the folder has no such part.
    """

    task: ClassVar[type[Task]] = Classification
    of_user: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("pillow",)

    folder: str | None = None
    size: tuple[PositiveInt, PositiveInt] = (64, 64)
    channels: Literal[1, 3] = 3
    validation: Share = 0.1
    test: Share = 0.2

    @property
    def user_files(self) -> tuple[Path, ...]:
        """What decides the result beside the config."""
        return tuple(path for part in self._folders().values() for path in _below(part))

    def load(self, root: Path, seed: int) -> Data:
        """Read every image. Raises UserError for a folder without classes and for a file that is not an image."""
        if self.folder is None:
            raise UserError("dataset.folder=null: name a folder with a subfolder of images for each class")
        found = self._folders()
        shown = f"dataset.folder={self.folder}"
        if not found:
            raise UserError(f"{shown}: no such folder")
        classes = sorted({path.name for part in found.values() for path in _below(part)})
        if len(classes) < 2:
            wanted = "give a subfolder of images for each class, two at least"
            raise UserError(f"{shown}: has the classes {', '.join(classes) or '(none)'}; {wanted}")
        parts = {name: self._read(part, classes, shown) for name, part in found.items()}
        return classification(parts, classes, self.validation, self.test, seed, shown)

    def _folders(self) -> dict[str, Path]:
        """The folder of each part: of train alone where the classes lie in the folder itself."""
        if self.folder is None or not (root := Path(self.folder).expanduser()).is_dir():
            return {}
        parts = {name: root / name for name in PARTS if (root / name).is_dir()}
        return parts if "train" in parts else {"train": root}

    def _read(self, part: Path, classes: list[str], shown: str) -> tuple[np.ndarray, np.ndarray]:
        """Images (N, height, width, channels) uint8, and the names of their classes."""
        paths = [path for name in classes for path in sorted((part / name).glob("*")) if _is_image(path)]
        if not paths:
            raise UserError(f"{shown}: {part} holds no image ({', '.join(SUFFIXES)})")
        x = np.empty((len(paths), *self.size, self.channels), np.uint8)
        for number, path in enumerate(paths):
            x[number] = self._image(path)
        return x, np.array([path.parent.name for path in paths])

    def _image(self, path: Path) -> np.ndarray:
        from PIL import Image

        try:
            with Image.open(path) as stored:
                return pixels(stored, self.size, self.channels, f"dataset.folder={self.folder}: {path}")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"dataset.folder={self.folder}: {path}: not a readable image ({error})") from error


def _below(part: Path) -> list[Path]:
    return sorted(path for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
