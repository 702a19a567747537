"""Duplicates in a user's data: examples held out that are also in train (leakage), and conflicting labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.datasets import Split

APART = 0x9E3779B97F4A7C1  # a large odd number, so that hashes differ by class


def notes(splits: Mapping[str, Split]) -> tuple[str, ...]:
    """Of `splits` (train, validation, test), for people. Duplicates are examples whose x is equal, byte for byte, in a
    dtype that holds the numbers of all splits."""
    hashed = _hashed(splits)
    found = _leakage(splits, hashed)
    if splits["train"].y.dtype.kind == "i":  # numbers that are measured twice may well differ
        found += _conflicts(np.concatenate([*hashed.values()]), [split.y for split in splits.values()])
    return tuple(found)


def leakage(splits: Mapping[str, Split]) -> tuple[str, ...]:
    """The notes that are of this division alone, and not of all examples."""
    return tuple(_leakage(splits, _hashed(splits)))


def _hashed(splits: Mapping[str, Split]) -> dict[str, np.ndarray]:
    each = in_one_dtype([split.x for split in splits.values()])
    return {name: hashes(x) for name, x in zip(splits, each, strict=True)}


def _leakage(splits: Mapping[str, Split], hashed: Mapping[str, np.ndarray]) -> list[str]:
    found = []
    for name in ("validation", "test"):
        count = overlap(hashed[name], hashed["train"])
        if count:
            of = f"{count:,} of the {len(splits[name]):,} {name} examples {'are' if count > 1 else 'is'} also in train"
            found.append(f"{of}, byte for byte (leakage): results on them are optimistic")
    return found


def in_one_dtype(each: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Arrays in a dtype that holds the numbers of all; as they are, where some are not numbers."""
    if not all(x.dtype.kind in "buif" for x in each):  # they are refused when the data are checked
        return [*each]
    dtype = np.result_type(*each)
    return [x.astype(dtype, copy=False) for x in each]


def overlap(tested: np.ndarray, trained: np.ndarray) -> int:
    """How many of `tested` are in `trained`, both as hashes."""
    there = set(trained.tolist())  # np.isin takes eight times as long
    return sum(one in there for one in tested.tolist())


def _conflicts(x: np.ndarray, targets: list[np.ndarray]) -> list[str]:
    _, pairs = np.unique(x + np.concatenate(targets) * APART, return_index=True)  # one of each example and class
    count = int((np.unique(x[pairs], return_counts=True)[1] > 1).sum())
    examples = f"{count:,} example{'s occur' if count > 1 else ' occurs'}"
    return [f"{examples} more than once, with different classes (label conflict)"] if count else []


def hashes(x: np.ndarray, padding: int | None = None) -> np.ndarray:
    """Hashes (N,) int64 of examples, comparable within one process. `padding`: a token that is left out, since its
    number depends on the longest example of the data."""
    rows = x if padding is None else (row[row != padding] for row in x)
    return np.fromiter((hash(row.tobytes()) for row in rows), np.int64, len(x))
