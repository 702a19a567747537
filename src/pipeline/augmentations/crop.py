"""A part of each image, enlarged to the image's size (Szegedy et al., 2015; here of the same aspect ratio)."""

from __future__ import annotations

import numpy as np


def cropped(x_BHWC: np.ndarray, scale: np.ndarray, top: np.ndarray, left: np.ndarray) -> np.ndarray:
    """The window of `scale` times the height and the width whose corner is at (`top`, `left`), in pixels; all (B,).

    Interpolated linearly between the centres of the pixels, in float32, for images in float64 in that; integers are
    rounded.
    """
    wide = np.float64 if x_BHWC.dtype == np.float64 else np.float32
    found = _along(x_BHWC.astype(wide), scale, top)
    found = _along(np.ascontiguousarray(found.swapaxes(1, 2)), scale, left).swapaxes(1, 2)
    if x_BHWC.dtype.kind in "iub":
        found = np.rint(found)
    return np.ascontiguousarray(found.astype(x_BHWC.dtype))


def _along(x: np.ndarray, scale: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The same along axis 1 of (B, size, ...)."""
    batch, size = x.shape[:2]
    within = (np.arange(size) + 0.5) * scale[:, None] - 0.5
    at = np.clip(within, 0, np.maximum(scale[:, None] * size - 1, 0)) + first[:, None]
    below = np.minimum(at.astype(np.int64), size - 1)
    above = np.minimum(below + 1, size - 1)
    share = (at - below).astype(x.dtype).reshape(batch, size, *[1] * (x.ndim - 2))
    each = np.arange(batch)[:, None]
    low = x[each, below]
    return low + (x[each, above] - low) * share
