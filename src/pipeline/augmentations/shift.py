"""Images moved by whole pixels; what comes in at the edge is 0 (the random crop of padded images: He et al., 2015)."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def shifted(x_BHWC: np.ndarray, down: np.ndarray, right: np.ndarray, most: int) -> np.ndarray:
    """Each image moved by its `down` and `right` (B,), which lie between -`most` and `most`."""
    batch, height, width, channels = x_BHWC.shape
    padded = np.pad(x_BHWC, ((0, 0), (most, most), (most, most), (0, 0))).reshape(batch, height + 2 * most, -1)
    windows = sliding_window_view(padded, (height, width * channels), (1, 2))
    return windows[np.arange(batch), most - down, (most - right) * channels].reshape(x_BHWC.shape)
