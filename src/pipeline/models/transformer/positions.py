"""Where a token stands, as numbers: tables in float64, the same on every backend."""

from __future__ import annotations

import numpy as np

from pipeline.models.transformer import ROTARY_BASE


def linear(length: int) -> np.ndarray:
    """(T, 1): t / T, by which a learned direction (D,) is multiplied.

    The same number in every component would be lost: LayerNorm subtracts it. Two neighbours hardly differ.
    """
    return np.arange(length)[:, None] / length


def sinusoidal(length: int, width: int) -> np.ndarray:
    """(T, D): sines and cosines of ever longer waves (Vaswani et al., section 3.5)."""
    waves_TD = _angles(length, width)
    table = np.empty((length, width))
    table[:, 0::2] = np.sin(waves_TD)
    table[:, 1::2] = np.cos(waves_TD[:, : width // 2])
    return table


def rotary(length: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines (T, K) by which a head's halves are turned (Su et al., "RoFormer", 2021, section 3.2.2).

    Number i is turned with number i + K/2, as Llama's weights have it.
    """
    angles_TK = np.tile(_angles(length, head), 2)
    return np.cos(angles_TK), np.sin(angles_TK)


def _angles(length: int, width: int) -> np.ndarray:
    """(T, width / 2): position times frequency."""
    frequencies = ROTARY_BASE ** (-np.arange(0, width, 2) / width)
    return np.arange(length)[:, None] * frequencies
