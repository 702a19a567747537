"""Which token comes next, by its logits: one rule in NumPy, by which every backend draws the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sampling:
    """`temperature`: logits are divided by it; 0: the most probable token. `top_k`: only so many of the most probable.

    `top_p`: of those, the fewest whose probabilities reach it together (Holtzman et al., "The curious case of neural
    text degeneration", 2020, section 3.1). A draw depends on the seed, the row and its number in the row alone.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def choose(self, logits_BV: np.ndarray, number: int) -> np.ndarray:
        """The next token of each row, (B,); the `number`-th that is drawn in it, from 0."""
        if self.temperature == 0:
            return np.argmax(logits_BV, axis=1)
        order_BV, likely_BV = self.likely(logits_BV)
        summed_BV = np.cumsum(likely_BV, axis=1)
        drawn_B = np.array([np.random.default_rng([self.seed, row, number]).random() for row in range(len(logits_BV))])
        reached_BV = summed_BV > (drawn_B * summed_BV[:, -1])[:, None]
        return np.take_along_axis(order_BV, reached_BV.argmax(axis=1)[:, None], axis=1)[:, 0]

    def likely(self, logits_BV: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens (B, V), the most probable first and of equal ones the first first, and their probabilities.

        Those of tokens that are left out are 0.
        """
        with np.errstate(over="ignore"):  # a very low temperature leaves one token
            scaled_BV = (logits_BV - logits_BV.max(axis=1, keepdims=True)) / self.temperature
        order_BV = np.argsort(-scaled_BV, axis=1, kind="stable")
        powers_BV = np.exp(np.take_along_axis(scaled_BV, order_BV, axis=1))
        if self.top_k is not None:
            powers_BV[:, self.top_k :] = 0
        likely_BV = powers_BV / powers_BV.sum(axis=1, keepdims=True)
        if self.top_p is not None:
            before_BV = np.cumsum(likely_BV, axis=1) - likely_BV
            likely_BV[before_BV >= self.top_p] = 0
            likely_BV /= likely_BV.sum(axis=1, keepdims=True)
        return order_BV, likely_BV
