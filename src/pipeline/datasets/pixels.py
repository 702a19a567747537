"""Images of files as arrays of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pipeline.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")  # of files that are images
WITH_TRANSPARENCY = 4  # channels
MODES = {1: "L", 3: "RGB", WITH_TRANSPARENCY: "RGBA"}  # Pillow's, by channels
GREY = ("1", "L")  # Pillow's modes of one channel of bytes


def pixels(image: Any, size: tuple[int, int] | None, channels: int, who: str, ground: str = "black") -> np.ndarray:
    """A Pillow image as (height, width, channels) uint8, as it looks: turned as its camera says, and on a ground of
    one colour where it is transparent and its transparency is not a channel.

    Raises UserError for one of more than 8 bits a channel.
    """
    from PIL import Image, ImageOps

    if image.mode[0] in "IF":  # to bytes Pillow does not scale them: it cuts what is above 255
        raise UserError(
            f"{who}: holds an image of Pillow's mode {image.mode}, of more than 8 bits; "
            "save it with 8, or its numbers as arrays (dataset=npz)"
        )
    ImageOps.exif_transpose(image, in_place=True)
    if channels != WITH_TRANSPARENCY and image.has_transparency_data:  # below which any colour may stand
        image = Image.alpha_composite(Image.new("RGBA", image.size, ground), image.convert("RGBA"))
    made = image.convert(MODES[channels])
    height, width = size or (made.height, made.width)
    resized = made if made.size == (width, height) else made.resize((width, height))
    return np.asarray(resized).reshape(height, width, channels)


def images_in(image: Any) -> int:
    """How many the file of a Pillow image holds, of which `pixels` takes the first."""
    return int(getattr(image, "n_frames", 1))


def said_of_several(counts: Iterable[int]) -> tuple[str, ...]:
    """A note of the files that hold several images, given how many each of them holds."""
    files = sum(count > 1 for count in counts)
    return (f"{files} file{'s hold' if files > 1 else ' holds'} several images; only the first is read",) * (files > 0)
