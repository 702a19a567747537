"""Datasets: one file each. A dataset is a spec whose `load` gives NumPy arrays; nothing here knows a framework."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Split:
    """Images `x` (N, H, W, C) as stored (uint8 for the shipped sets) and their classes `y` (N,) int64."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Arrays:
    """A dataset in memory. `scale` is what `x` is divided by to lie in [0, 1].

    `sha256` hashes what was read, before the seed split it: it tells whether two runs had the same data to draw from.
    """

    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    scale: float
    sha256: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
        height, width, channels = self.train.x.shape[1:]
        return int(height), int(width), int(channels)

    def scaled(self, x: np.ndarray, dtype: str = "float32") -> np.ndarray:
        """`x` divided by `scale`, as `dtype`: what every backend is fed."""
        return np.divide(x, np.asarray(self.scale, dtype), dtype=dtype)
