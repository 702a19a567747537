"""The arrays of a Keras training that a checkpoint holds, as an .npz without pickles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pipeline.errors import UserError
from pipeline.runs import weights

BESIDE = "beside-"


def write(arrays: list[np.ndarray], path: Path, beside: Sequence[np.ndarray] = ()) -> None:
    """In their order, and those `beside` them under names of their own. bfloat16, which NumPy has no name for, as
    bytes."""
    named = {f"{number:06}": array for number, array in enumerate(arrays)}
    named |= {f"{BESIDE}{number:06}": array for number, array in enumerate(beside)}
    weights.write(path, named)


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
        raise UserError(f"{path}: holds other dtypes than this version saves; train again")
    return [one.view(array.dtype) for one, array in zip(found, like, strict=True)]


def read_beside(path: Path, count: int) -> list[np.ndarray]:
    """What `write` wrote beside its `count` arrays. Raises UserError where it wrote more or fewer of these."""
    kept = weights.load(path)
    beside = [name for name in sorted(kept) if name.startswith(BESIDE)]
    if len(kept) - len(beside) != count:
        raise UserError(
            f"{path}: holds {len(kept) - len(beside)} arrays, and model and optimizer have {count}; train again"
        )
    return [kept[name] for name in beside]
