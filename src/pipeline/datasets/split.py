"""How every dataset holds out its validation images, and how its arrays are hashed."""

from __future__ import annotations

import hashlib
from typing import Annotated

import numpy as np
from pydantic import Field

from pipeline.datasets import Data, Split
from pipeline.errors import UserError

Share = Annotated[float, Field(ge=0, lt=1)]  # held out
HASHED = 1000  # rows of a split by which it is known again: any other division moves most of them


def check_sizes(validation: int, train_size: int | None, size: int) -> None:
    """Refuse a split that `size` training images cannot give."""
    if not 0 <= validation < size:
        raise UserError(
            f"dataset.validation={validation}: must be at least 0 and less than {size}, the training images"
        )
    left = size - validation
    if train_size is not None and not 1 <= train_size <= left:
        raise UserError(
            f"dataset.train_size={train_size}: must be at least 1 and at most {left}, "
            f"the training images left by dataset.validation={validation}"
        )


def hold_out(whole: Split, validation: int, train_size: int | None, seed: int) -> tuple[Split, Split]:
    """Train and validation, in an order drawn by `seed`. `train_size` shortens train; validation stays the same."""
    order = np.random.default_rng(seed).permutation(len(whole))
    held = order[:validation]
    kept = order[validation:] if train_size is None else order[validation : validation + train_size]
    return Split(whole.x[kept], whole.y[kept]), Split(whole.x[held], whole.y[held])


def held_out(data: Data) -> dict[str, str]:
    """Which examples nothing is trained on: the hash of each such split, by HASHED of its rows from end to end."""
    if data.held_out is not None:
        return dict(data.held_out)
    return {"validation": _known_by(data.validation), "test": _known_by(data.test)}


def examples(data: Data) -> dict[str, str]:
    """By what processes that load the same data see that they have divided them alike: of every split, in its order."""
    return {"train": _known_by(data.train), **held_out(data)}


def _known_by(split: Split) -> str:
    rows = np.unique(np.linspace(0, len(split) - 1, min(HASHED, len(split))).astype(int))
    return f"{len(split)}-{hash_splits(Split(split.x[rows], split.y[rows]))}"


def hash_splits(*splits: Split) -> str:
    """SHA-256 over the dtype, shape and bytes of every array, in order."""
    digest = hashlib.sha256()
    for split in splits:
        for array in (split.x, split.y):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            row = np.ascontiguousarray(array).reshape(-1)
            digest.update(row.view(np.int64).data if array.dtype.kind in "mM" else row.data)  # dates have no buffer
    return digest.hexdigest()
