"""Random numbers by the seed, the epoch and the example's number: a generator that can begin anywhere.

SplitMix64 (Steele, Lea & Flood, OOPSLA 2014, fig. 13), one for each example, vectorised over them. NumPy's generators
are seeded one by one, which takes longer than augmenting an image.
"""

from __future__ import annotations

import numpy as np

GAMMA = 0x9E3779B97F4A7C15
TAG = 0x61756772  # another stream than that of anything else that takes the seed


def mixed(state: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (its mix64variant13) of states (...) uint64."""
    state = (state ^ (state >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> 27)) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> 31)


class Draws:
    """Numbers for a batch of examples; each call gives the next ones. `examples`: their numbers (B,)."""

    def __init__(self, seed: int, epoch: int, examples: np.ndarray) -> None:
        key = mixed(np.array([seed + (TAG << 32)], np.uint64))
        for part in (np.array([epoch]), np.asarray(examples)):
            key = mixed(key + part.astype(np.uint64) * np.uint64(GAMMA))
        self.state = key  # (B,)

    def bits(self, count: int) -> np.ndarray:
        """The next outputs (B, count), uint64."""
        after = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)
        found = mixed(self.state[:, None] + after)
        self.state = self.state + after[-1:]
        return found

    def uniform(self, *shape: int) -> np.ndarray:
        """Numbers (B, *shape) in [0, 1), float64."""
        bits = self.bits(int(np.prod(shape, dtype=int)))
        return ((bits >> 11) * 2.0**-53).reshape(len(bits), *shape)

    def integers(self, low: int, high: int, *shape: int) -> np.ndarray:
        """Integers (B, *shape) from `low` to `high - 1`, int64."""
        return low + np.floor(self.uniform(*shape) * (high - low)).astype(np.int64)
