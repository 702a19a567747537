"""Where the examples lie: in memory, as a PNG each, or in one mapped file. The files are made once, in the cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.datasets import Data, Split
from pipeline.datasets.pictures import Pictures
from pipeline.datasets.split import hash_splits
from pipeline.errors import UserError
from pipeline.report.table import size as in_bytes

FOLDER = "loading"  # below the cache
BLOCK = 1 << 25  # bytes of the mapped file that are written at once
LEFT = 1 << 28  # bytes that are left free on the disk


@dataclass(frozen=True)
class Stored:
    """A source as it is sent to its process. `x`, `y`: the examples in memory; `examples`: that a pass takes.

    `files`: a PNG of each. `mapped`: a file of the examples over and over. `bytes`: on the disk.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    examples: int
    files: tuple[Path, ...] = ()
    mapped: Path | None = None
    bytes: int = 0

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "source": self.name,
            "examples": self.examples,
            "pictures": [str(path) for path in self.files] or None,
            "mapped": None if self.mapped is None else str(self.mapped),
        }


def stored(name: str, data: Data, examples: int, mapped_bytes: int, root: Path) -> Stored:
    """The examples where `name` says. Raises UserError for files that cannot be written or are damaged."""
    train = data.train
    first = Split(train.x[:examples], train.y[:examples])
    if name == "memory":
        return Stored(name, first.x, first.y, examples)
    try:
        if name == "files":
            return _as_files(first, root / FOLDER)
        return _as_one(train, examples, mapped_bytes, root / FOLDER)
    except OSError as error:
        raise UserError(
            f"stage.sources={name}: cannot write {error.filename or root}: {error.strerror or error}; "
            "name another folder with PIPELINE_CACHE"
        ) from error


def is_picture(data: Data) -> bool:
    """Whether examples are what a PNG holds: bytes, grey or in colours."""
    shape = data.train.x.shape[1:]
    return data.train.x.dtype == np.uint8 and len(shape) == 3 and shape[-1] in (1, 3)


def _as_files(split: Split, root: Path) -> Stored:
    """A PNG each, in a folder for each class, as dataset=image_folder reads them; read back before they are used."""
    folder = root / f"files-{hash_splits(split)[:16]}"
    paths = [folder / str(label) / f"{number:06}.png" for number, label in enumerate(split.y.tolist())]
    if not folder.exists():
        _at_once(folder, split.x.nbytes, lambda temporary: _write_pictures(temporary, folder, paths, split.x))
    pictures = Pictures(paths, split.x.shape[1:])
    for number, image in enumerate(split.x):
        check_picture(pictures, number, image, folder)
    size = sum(path.stat().st_size for path in paths)
    return Stored("files", split.x, split.y, len(split), files=tuple(paths), bytes=size)


def check_picture(pictures: Pictures, number: int, image: np.ndarray, folder: Path) -> None:
    """Raise UserError for a file that does not hold its image (H, W, C)."""
    path = pictures.paths[number]
    try:
        fault = None if np.array_equal(pictures[number], image) else f"{path}: holds another image than was written"
    except UserError as error:
        fault = str(error)
    if fault:
        raise UserError(f"stage.sources=files: {fault}; delete {folder} and it will be made again")


def _write_pictures(temporary: Path, folder: Path, paths: list[Path], images: np.ndarray) -> None:
    from PIL import Image

    for path, image in zip(paths, images, strict=True):
        target = temporary / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(target)


def _as_one(train: Split, examples: int, least: int, root: Path) -> Stored:
    """One .npy file of at least so many bytes: the training examples over and over."""
    rows = max(len(train), -(-least // max(1, train.x[0].nbytes)))
    path = root / f"mapped-{hash_splits(train)[:16]}-{rows}.npy"
    size = rows * train.x[0].nbytes
    if not path.exists():
        _at_once(path, size, lambda temporary: _write_one(temporary, train.x, rows))
    return Stored("mapped", train.x, train.y, examples, mapped=path, bytes=size)


def _write_one(path: Path, x: np.ndarray, rows: int) -> None:
    block = max(1, BLOCK // x[0].nbytes)
    with path.open("wb") as file:
        header = {"descr": x.dtype.str, "fortran_order": False, "shape": (rows, *x.shape[1:])}
        np.lib.format.write_array_header_2_0(file, header)
        for first in range(0, rows, block):
            np.take(x, np.arange(first, min(first + block, rows)) % len(x), axis=0).tofile(file)
        file.flush()
        os.fsync(file.fileno())  # pages that are not on the disk yet cannot be dropped from memory


def _at_once(target: Path, size: int, write: Callable[[Path], None]) -> None:
    """Write beside `target` and rename, so that others find all of it or nothing. Raises UserError for a full disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free - LEFT
    if size > free:
        raise UserError(f"{target}: needs {in_bytes(size)}, and {in_bytes(max(0, free))} of the disk are free")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as folder:
        temporary = Path(folder) / target.name
        write(temporary)
        if target.is_dir():  # another process was quicker
            return
        temporary.replace(target)
