"""The usual changes of images: crop, shift, flip, cutout, each where it is set, in this order."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeInt

from pipeline.augmentations.crop import cropped
from pipeline.augmentations.cutout import cut_out
from pipeline.augmentations.draws import Draws
from pipeline.augmentations.flip import flipped
from pipeline.augmentations.shift import shifted
from pipeline.contracts import Augmentation
from pipeline.errors import UserError
from pipeline.spec import spec

NUMBERS = 8  # drawn for each image, whatever is set: setting one change leaves the others' draws as they are


@spec
class Images(Augmentation):
    """`crop`: the smallest share of the area that is kept and enlarged (1: all of it). `shift`: pixels up, down, left
    or right at most. `flip`: mirror every other image. `cutout`: the side of a square that is set to 0.
    """

    crop: Annotated[float, Field(gt=0, le=1)] = 1.0
    shift: NonNegativeInt = 0
    flip: bool = False
    cutout: NonNegativeInt = 0

    @property
    def active(self) -> bool:
        """Whether anything is set."""
        return self.crop < 1 or self.shift > 0 or self.flip or self.cutout > 0

    def check(self, image: tuple[int, int, int]) -> None:
        """Refuse what leaves nothing of an image."""
        height, width, _ = image
        for name in ("shift", "cutout"):
            value = getattr(self, name)
            if value >= min(height, width):
                raise UserError(f"augmentation.{name}={value}: the images have {height} x {width} pixels; choose less")

    def augmented(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        """x (B, H, W, C), each image changed by its own draws."""
        height, width = x.shape[1:3]
        u = draws.uniform(NUMBERS).T
        if self.crop < 1:
            smallest = math.sqrt(self.crop)
            scale = smallest + (1 - smallest) * u[0]
            x = cropped(x, scale, u[1] * (1 - scale) * height, u[2] * (1 - scale) * width)
        if self.shift:
            down, right = (_integers(one, 2 * self.shift + 1) - self.shift for one in u[3:5])
            x = shifted(x, down, right, self.shift)
        if self.flip:
            x = flipped(x, u[5] < 0.5)
        if self.cutout:
            x = cut_out(x, _integers(u[6], height), _integers(u[7], width), self.cutout)
        return x


def _integers(uniform: np.ndarray, count: int) -> np.ndarray:
    """0 to `count` - 1, by numbers in [0, 1)."""
    return np.floor(uniform * count).astype(np.int64)
