"""The points of several seeds as arrays of one shape, and the choice of new ones among candidates; in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Part = dict[str, Any]  # arrays (N, ...) by name, `x` among them


def alike(drawn: Sequence[dict[str, Part]]) -> list[dict[str, Part]]:
    """Of each seed its parts, with as many points in a part for every seed.

    The boundary's points start anywhere along it: a condition may have more of them with one seed than with another.
    """
    counts = {name: [len(one[name]["x"]) for one in drawn] for name in drawn[0]}
    most = {name: max(each) for name, each in counts.items() if len(set(each)) > 1}
    return [{name: filled(part, most[name]) if name in most else part for name, part in one.items()} for one in drawn]


def filled(part: Part, n: int) -> Part:
    """`n` points, of which those that were added weigh nothing: a mean square over all is that over the others."""
    count = len(part["x"])
    at = np.minimum(np.arange(n), count - 1)
    weight = np.where(np.arange(n) < count, np.sqrt(n / count), 0)[:, None].astype(part["x"].dtype)
    return {**{name: array[at] for name, array in part.items()}, "weight": weight}


def chosen(share: np.ndarray, ends: np.ndarray, n: int, generator: np.random.Generator) -> np.ndarray:
    """Indices (n,) of candidates: all of `ends` (N,) bool, the others drawn with probabilities like `share` (N,)."""
    always = np.flatnonzero(ends)[:n]
    others = share * ~ends
    drawn = generator.choice(len(share), n - len(always), replace=False, p=others / others.sum())
    return np.concatenate([always, drawn])
