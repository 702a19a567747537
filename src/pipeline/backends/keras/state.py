"""The arrays of a Keras training that a checkpoint holds, as an .npz without pickles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pipeline.errors import UserError
from pipeline.runs import weights


def write(arrays: list[np.ndarray], path: Path) -> None:
    """In their order. bfloat16, which NumPy has no name for, as bytes."""
    with path.open("wb") as file:
        np.savez(file, **{f"{number:06}": array for number, array in enumerate(arrays)})  # type: ignore[arg-type]


def write_made(made: Callable[[], list[np.ndarray]], path: Path) -> None:
    """What `made` gives, once it is to be written."""
    write(made(), path)


def read(path: Path, like: list[np.ndarray]) -> list[np.ndarray]:
    """What `write` wrote, in the dtypes of `like`; what a checkpoint of before does not have is as in `like`.

    Raises UserError where one of before has numbers of another width.
    """
    kept = weights.load(path)
    found = [kept.get(f"{number:06}", array) for number, array in enumerate(like)]
    if [one.nbytes for one in found] != [array.nbytes for array in like]:
        raise UserError(f"{path}: holds numbers of other dtypes than this version keeps; train anew")
    return [one.view(array.dtype) for one, array in zip(found, like, strict=True)]


def read_after(path: Path, count: int) -> list[np.ndarray]:
    """What `write` wrote after the first `count` arrays."""
    kept = weights.load(path)
    return [kept[name] for name in sorted(kept)[count:]]
