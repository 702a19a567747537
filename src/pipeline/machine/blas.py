"""The threads of BLAS keep the cores busy after their work: how long, and a norm that does not wake them.

A result is compared between two timings. numpy.linalg.norm would ask BLAS, whose threads take a part of the next one.
"""

from __future__ import annotations

import numpy as np

SPINS_S = 0.15  # OpenBLAS's threads do so for some 0.1 s; whoever is timed then shares a core with them


def norm(array: np.ndarray) -> float:
    """The square root of the sum of squares, of an array of any shape."""
    return float(np.sqrt(np.square(array).sum()))
