"""Examples that a user's data hold more than once: where the test has some that were trained on, it flatters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.datasets import Split

APART = 0x9E3779B97F4A7C1  # a large odd number: what it is added to is another hash for each class


def notes(splits: Mapping[str, Split]) -> tuple[str, ...]:
    """What `splits` (train, validation, test) have in common, and which examples stand there with several classes.

    Examples are the same where every byte of x is.
    """
    hashed = {name: _hashes(split.x) for name, split in splits.items()}
    trained, found = set(hashed["train"].tolist()), []  # a set: np.isin takes eight times as long
    for name in ("validation", "test"):
        count = sum(one in trained for one in hashed[name].tolist())
        if count:
            of = f"{count:,} of the {len(splits[name]):,} {name} examples {'are' if count > 1 else 'is'} also in train"
            found.append(f"{of}, to the byte: what is measured there flatters")
    if splits["train"].y.dtype.kind == "i":  # numbers that are measured twice may well differ
        found += _of_several_classes(np.concatenate([*hashed.values()]), [split.y for split in splits.values()])
    return tuple(found)


def _of_several_classes(x: np.ndarray, targets: list[np.ndarray]) -> list[str]:
    _, pairs = np.unique(x + np.concatenate(targets) * APART, return_index=True)  # one of each example and class
    count = int((np.unique(x[pairs], return_counts=True)[1] > 1).sum())
    examples = f"{count:,} example{'s stand' if count > 1 else ' stands'}"
    return [f"{examples} there several times, with several classes, of which one can be right"] if count else []


def _hashes(x: np.ndarray) -> np.ndarray:
    """A number (N,) int64 for each example."""
    return np.fromiter((hash(row.tobytes()) for row in x), np.int64, len(x))
