"""Images of your own: a folder with a subfolder for each class; or train/ and test/ (and validation/) with such."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from pipeline.contracts import Dataset
from pipeline.datasets import Data
from pipeline.datasets.own import (
    NAMES,
    TEST,
    VALIDATION,
    OneClass,
    Shares,
    classification,
    named_parts,
    of_files,
    say_left_out,
)
from pipeline.datasets.pixels import SUFFIXES, images_in, pixels, said_of_several
from pipeline.datasets.split import Share
from pipeline.errors import UserError
from pipeline.machine.regular_file import as_named, open_regular
from pipeline.spec import spec
from pipeline.tasks import Task
from pipeline.tasks.classification import Classification

Size = tuple[PositiveInt, PositiveInt]  # height, width
SIZE: Size = (64, 64)  # unless it is set


@spec
class ImageFolder(Dataset):
    """`size`: height and width to which every image is resized. `channels`: 1 for grey, 3 for colours.

    `validation`, `test`: the share of the training images held out where the folder has no such part.
    """

    task: ClassVar[type[Task]] = Classification
    of_user: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("pillow",)

    folder: str | None = None
    size: Size = SIZE
    channels: Literal[1, 3] = 3
    validation: Share = VALIDATION
    test: Share = TEST

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
            if as_named(self.folder) not in found.values():
                wanted += f" ({', '.join(path.name for path in found.values())}: taken as the parts, not as classes)"
            one = OneClass if classes else UserError
            raise one(f"{shown}: has the classes {', '.join(classes) or '(none)'}; {wanted}")
        self._say_left_out(found, shown)
        sizes: set[Size] = set()
        counts: list[int] = []
        parts = {name: self._read(part, classes, shown, sizes, counts) for name, part in found.items()}
        data = of_files(classification(parts, classes, Shares(self.validation, self.test), seed, shown))
        return replace(data, notes=(*data.notes, *self._resized(sizes), *said_of_several(counts)))

    def _folders(self) -> dict[str, Path]:
        """The folder of each part: of train alone where the classes lie in the folder itself."""
        if self.folder is None or not (root := as_named(self.folder)).is_dir():
            return {}
        if _train_is_class(root):
            return {"train": root}
        called = named_parts([path.name for path in _below(root)])
        parts = [root / name for name in called.values()]
        holds_images = any(_is_image(path) for part in parts for path in part.iterdir())  # so that it is a class
        if parts and "train" not in called and not holds_images:
            raise UserError(f"dataset.folder={self.folder}: has {', '.join(called.values())} and no train")
        return {part: root / name for part, name in called.items()} if "train" in called else {"train": root}

    def _say_left_out(self, found: Mapping[str, Path], shown: str) -> None:
        """Folders beside the parts, images that lie deeper than a class's, and files that are none of its images."""
        root = as_named(str(self.folder))
        beside = [] if root in found.values() else [path for path in _below(root) if path not in found.values()]
        deeper = [
            folder
            for part in found.values()
            for of_class in _below(part)
            for folder in _below(of_class)
            if any(_is_image(path) for path in folder.rglob("*"))
        ]
        folders = [f"the folder {path.relative_to(root)}" for path in (*beside, *deeper)]
        files = [path for part in found.values() for path in (*_files(part), *_others(part))]
        many = f"the file{'s' * (len(files) != 1)} {', '.join(str(path.relative_to(root)) for path in files)}"
        say_left_out([*folders, *([many] if files else [])], shown)

    def _resized(self, sizes: Collection[Size]) -> tuple[str, ...]:
        """A note that images were resized to the default size, where they had another one."""
        others = sorted((one for one in sizes if one != SIZE), key=lambda one: one[0] * one[1])
        if self.size != SIZE or not others:
            return ()
        height, width = SIZE
        ends = " to ".join(dict.fromkeys(f"{one[0]}x{one[1]}" for one in (others[0], others[-1])))
        return (f"images of {ends} pixels are resized to dataset.size=[{height},{width}] (height, width), its default",)

    def _read(
        self, part: Path, classes: list[str], shown: str, sizes: set[Size], counts: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Images (N, height, width, channels) uint8, and the names of their classes.

        Adds to `sizes` what they had, and to `counts` how many images each file holds.
        """
        paths = [path for name in classes for path in sorted((part / name).glob("*")) if _is_image(path)]
        if not paths:
            raise UserError(f"{shown}: {part} holds no image ({', '.join(SUFFIXES)})")
        x = np.empty((len(paths), *self.size, self.channels), np.uint8)
        for number, path in enumerate(paths):
            x[number] = self._image(path, sizes, counts)
        return x, np.array([path.parent.name for path in paths])

    def _image(self, path: Path, sizes: set[Size], counts: list[int]) -> np.ndarray:
        from PIL import Image, UnidentifiedImageError

        try:
            with open_regular(path) as file, Image.open(file) as stored:
                sizes.add((stored.height, stored.width))
                counts.append(images_in(stored))
                return pixels(stored, self.size, self.channels, f"dataset.folder={self.folder}: {path}")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            # Pillow's own words name the opened file by its number.
            why = "cannot identify image file" if isinstance(error, UnidentifiedImageError) else error
            raise UserError(f"dataset.folder={self.folder}: {path}: not a readable image ({why})") from error


def _train_is_class(root: Path) -> bool:
    """Whether images lie in the folder train and no deeper, and in a folder beside it that has no part's name."""
    holding = {path.name for path in _below(root) if any(_is_image(one) for one in path.iterdir())}
    if "train" not in holding or holding <= {name for names in NAMES.values() for name in names}:
        return False
    return not any(_is_image(one) for path in _below(root / "train") for one in path.rglob("*"))


def _below(part: Path) -> list[Path]:
    return sorted(path for path in part.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _others(part: Path) -> list[Path]:
    """Files of its classes that are no images."""
    return [path for of_class in _below(part) for path in _files(of_class) if not _is_image(path)]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
