"""Images with a square set to 0 (DeVries & Taylor, 2017, arXiv:1708.04552): the part beyond an edge is left out."""

from __future__ import annotations

import numpy as np


def cut_out(x_BHWC: np.ndarray, row: np.ndarray, column: np.ndarray, side: int) -> np.ndarray:
    """A square of `side` pixels round each image's `row` and `column` (B,) set to 0."""
    found = x_BHWC.copy()
    for image, top, left in zip(found, (row - side // 2).tolist(), (column - side // 2).tolist(), strict=True):
        image[max(top, 0) : top + side, max(left, 0) : left + side] = 0
    return found
