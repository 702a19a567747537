"""Images in files, read and decoded each time they are asked for, in the place of an array in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.datasets.pixels import pixels
from pipeline.errors import UserError


class Pictures:
    """Images (N, H, W, C) uint8 of the files `paths` (N,), all of the size `shape` (H, W, C); C is 1 or 3.

    Indexed by a number or by numbers (B,), as a loader indexes an array. Raises UserError for a file that is not such
    an image.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, paths: Sequence[Path], shape: tuple[int, ...]) -> None:
        self.paths = np.array([str(path) for path in paths])  # one block of memory, which forked workers share
        self.shape = (len(paths), *shape)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Any) -> np.ndarray:
        if np.ndim(rows) == 0:
            return self.decoded(str(self.paths[rows]))
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number, path in enumerate(self.paths[rows]):
            found[number] = self.decoded(str(path))
        return found

    def decoded(self, path: str, file: Any = None) -> np.ndarray:
        """The image of a file, or of the same `file` opened already."""
        from PIL import Image

        try:
            with Image.open(file or path) as image:
                found = pixels(image, None, self.shape[-1], path)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"{path}: not a readable image ({error})") from error
        if found.shape != self.shape[1:]:
            raise UserError(f"{path}: an image of {found.shape}, not of {self.shape[1:]}")
        return found
