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
    hashed, found = {name: hashes(split.x) for name, split in splits.items()}, []
    for name in ("validation", "test"):
        count = seen(hashed[name], hashed["train"])
        if count:
            of = f"{count:,} of the {len(splits[name]):,} {name} examples {'are' if count > 1 else 'is'} also in train"
            found.append(f"{of}, to the byte: what is measured there flatters")
    if splits["train"].y.dtype.kind == "i":  # numbers that are measured twice may well differ
        found += _of_several_classes(np.concatenate([*hashed.values()]), [split.y for split in splits.values()])
    return tuple(found)


def seen(tested: np.ndarray, trained: np.ndarray) -> int:
    """How many of `tested` are among `trained`, both by their hashes."""
    there = set(trained.tolist())  # np.isin takes eight times as long
    return sum(one in there for one in tested.tolist())


def _of_several_classes(x: np.ndarray, targets: list[np.ndarray]) -> list[str]:
    _, pairs = np.unique(x + np.concatenate(targets) * APART, return_index=True)  # one of each example and class
    count = int((np.unique(x[pairs], return_counts=True)[1] > 1).sum())
    examples = f"{count:,} example{'s stand' if count > 1 else ' stands'}"
    return [f"{examples} there several times, with several classes, of which one can be right"] if count else []


def hashes(x: np.ndarray, filled: int | None = None) -> np.ndarray:
    """A number (N,) int64 for each example, the same in one process. `filled`: the token that examples are filled up
    with, which does not count: as far as the longest of their data is long."""
    rows = x if filled is None else (row[row != filled] for row in x)
    return np.fromiter((hash(row.tobytes()) for row in rows), np.int64, len(x))
