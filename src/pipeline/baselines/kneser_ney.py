"""An n-gram model of bytes with modified, interpolated Kneser-Ney smoothing, in NumPy.

Chen and Goodman, "An empirical study of smoothing techniques for language modeling", 1999, sections 2.7 and 3:

    p(w | h) = (c(h w) - d(c(h w)) + sum over all w' of d(c(h w')) * p(w | h without its first byte)) / c(h)

In the highest order c counts occurrences; below it, the different bytes that come before (h w). The discount d is 0 for
a count of 0, and one number each for the counts 1, 2, and 3 or more (their equation 26). Below single bytes all 256 are
equally probable. A gram of k bytes is a number of 8 k bits, its last byte the lowest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BYTE = 8  # bits
MOST = 8  # bytes of a gram, in 64 bits
START = 0x0A  # a text begins as after newlines
OF_TINY = 0.75  # each discount, where a text is too small or too odd for the estimate
LEAST = 0.1  # of a discount: with 0, what was never seen would be impossible


@dataclass(frozen=True)
class Counts:
    """`grams` (G,), ascending, and the `counts` of each; their `contexts` (C,), each with two sums over its grams.

    `totals`: of the counts; `spared`: of the discounts.
    """

    grams: np.ndarray
    counts: np.ndarray
    discounts: np.ndarray  # of a count of 0, 1, 2, and 3 or more
    contexts: np.ndarray
    totals: np.ndarray
    spared: np.ndarray

    def probabilities(self, grams: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """p (N,) of the last byte of each of `grams` (N,); `lower`: p of the order below."""
        counts = values_at(grams, self.grams, self.counts)
        contexts = grams >> np.uint64(BYTE)
        total, spared = (values_at(contexts, self.contexts, sums) for sums in (self.totals, self.spared))
        kept = counts - discount_of(counts, self.discounts) + spared * lower
        return np.divide(kept, total, out=lower.copy(), where=total > 0)


def bits_per_byte(train: np.ndarray, test: np.ndarray, order: int) -> float:
    """The mean of -log2 p over the bytes of `test` (N,) uint8, by the model of `train` (M,) uint8.

    Takes O(M log M) time. Raises ValueError for an order that is not 1 to 8, and for an empty text.
    """
    return float(-np.log2(probabilities(train, test, order)).mean())


def probabilities(train: np.ndarray, test: np.ndarray, order: int) -> np.ndarray:
    """p (N,) of each byte of `test` (N,) after those before it."""
    if not 1 <= order <= MOST:
        raise ValueError(f"order={order}: choose 1 to {MOST}")
    if not len(train) or not len(test):
        raise ValueError(f"{len(train)} bytes to count and {len(test)} to predict: give at least one of each")
    grams = grams_of(test, order)
    likely = np.full(len(test), 1 / 256)
    for size, counts in enumerate(orders(train, order), start=1):
        likely = counts.probabilities(grams & last(size), likely)
    return likely


def orders(text: np.ndarray, order: int) -> list[Counts]:
    """The counts of each order, from single bytes up."""
    grams, counts = np.unique(grams_of(text, order), return_counts=True)
    found = [counted(grams, counts)]
    for size in range(order - 1, 0, -1):
        grams, counts = np.unique(grams & last(size), return_counts=True)  # each of the longer grams once
        found.append(counted(grams, counts))
    return found[::-1]


def counted(grams: np.ndarray, counts: np.ndarray) -> Counts:
    """With the sums over each context, whose grams are neighbours."""
    discounts = discounts_for(counts)
    contexts, first = np.unique(grams >> np.uint64(BYTE), return_index=True)
    totals, spared = (np.add.reduceat(one, first) for one in (counts, discount_of(counts, discounts)))
    return Counts(grams, counts, discounts, contexts, totals, spared)


def discounts_for(counts: np.ndarray) -> np.ndarray:
    """(4,): the discounts of counts of 0, 1, 2, and 3 or more."""
    n = np.array([np.count_nonzero(counts == count) for count in (1, 2, 3, 4)])
    if not n.all():
        return np.array([0, *[OF_TINY] * 3])
    kept = n[0] / (n[0] + 2 * n[1])
    found = [count - (count + 1) * kept * n[count] / n[count - 1] for count in (1, 2, 3)]
    return np.array([0, *np.maximum(found, LEAST)])


def discount_of(counts: np.ndarray, discounts: np.ndarray) -> np.ndarray:
    """The discount of each count."""
    return discounts[np.minimum(counts, 3)]


def grams_of(text: np.ndarray, size: int) -> np.ndarray:
    """The gram that ends with each byte of a text, (N,) uint64."""
    padded = np.concatenate([np.full(size - 1, START, np.uint8), text])
    grams = np.zeros(len(text), np.uint64)
    for begin in range(size):
        grams = grams << np.uint64(BYTE) | padded[begin : begin + len(text)]
    return grams


def last(size: int) -> np.uint64:
    """A mask that keeps the last `size` bytes of a gram."""
    return np.uint64((1 << BYTE * size) - 1)


def values_at(wanted: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The value of each of `wanted` among the ascending `keys`; 0 for one that is not there."""
    where = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[where] == wanted, values[where], 0)
