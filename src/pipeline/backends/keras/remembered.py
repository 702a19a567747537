"""What callbacks of Keras remember between epochs (best weights, best metric, counters), for a checkpoint.

Numbers, words, lists and dicts of them, and arrays that a callback holds as attributes are kept. Other objects are not.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

OF_KERAS = ("params", "_model", "validation_data")


def taken(callbacks: Sequence[Any]) -> list[np.ndarray]:
    """The attributes as arrays: the first is JSON, the others are those that it counts."""
    arrays: list[np.ndarray] = []
    kept: list[dict[str, Any]] = []
    for callback in callbacks:
        kept.append({})
        for name, value in vars(callback).items():
            if name in OF_KERAS:
                continue
            if _is_plain(value):
                kept[-1][name] = {"plain": value}
            elif _are_arrays(value):
                found = list(map(np.asarray, value)) if isinstance(value, list) else [np.asarray(value)]
                many = isinstance(value, list)
                kept[-1][name] = {"many": many, "first": len(arrays), "dtypes": [str(one.dtype) for one in found]}
                arrays += found
    return [np.frombuffer(json.dumps(kept).encode(), np.uint8), *arrays]


def put_back(callbacks: Sequence[Any], found: Sequence[np.ndarray]) -> None:
    """Give callbacks made by the same code what `taken` took."""
    kept, arrays = json.loads(found[0].tobytes()), found[1:]
    for callback, attributes in zip(callbacks, kept, strict=True):
        for name, entry in attributes.items():
            setattr(callback, name, copy.copy(entry["plain"]) if "plain" in entry else _arrays(entry, arrays))


def _arrays(entry: dict[str, Any], arrays: Sequence[np.ndarray]) -> Any:
    held = [arrays[entry["first"] + number].view(np.dtype(name)) for number, name in enumerate(entry["dtypes"])]
    return held if entry["many"] else held[0][()]  # a scalar is one again


def _is_plain(value: object) -> bool:
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and _is_plain(one) for key, one in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _are_arrays(value: object) -> bool:
    several = value if isinstance(value, list) else [value]
    return all(isinstance(one, np.ndarray | np.generic) and one.dtype.kind != "O" for one in several)
