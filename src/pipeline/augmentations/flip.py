"""Images mirrored left to right."""

from __future__ import annotations

import numpy as np


def flipped(x_BHWC: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Those that are `chosen` (B,), bool, mirrored."""
    found = x_BHWC.copy()
    found[chosen] = x_BHWC[chosen, :, ::-1]
    return found
