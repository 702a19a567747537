"""The small data sets that come with scikit-learn as files: they need no network."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.datasets import Data, Split
from pipeline.datasets.split import hash_splits, hold_out
from pipeline.errors import UserError
from pipeline.tasks import Task


def file(name: str, dataset: str) -> Path:
    """Where scikit-learn keeps a file. Raises UserError where it is not installed, or the file is not there.

    scikit-learn is not imported, which takes about a second and brings SciPy along.
    """
    package = importlib.util.find_spec("sklearn")
    places = package.submodule_search_locations if package else None
    if not places:
        raise UserError(f"dataset={dataset}: it comes with scikit-learn, which is not installed")
    path = Path(places[0]) / "datasets" / "data" / name
    if not path.is_file():
        raise UserError(f"dataset={dataset}: {path} is not there; reinstall scikit-learn")
    return path


def divided(
    whole: Split, test: int, validation: int, train_size: int | None, seed: int, task: Task, scale: float | None = None
) -> Data:
    """Data of a set that has no published test part: `test` examples are it, the same for every seed, so that test
    figures of different seeds compare; drawn, since a file keeps the order of collection. `seed` draws `validation`.
    """
    order = np.random.default_rng(0).permutation(len(whole))
    rest, tested = (Split(whole.x[rows], whole.y[rows]) for rows in (order[test:], order[:test]))
    train, held_out = hold_out(rest, validation, train_size, seed)
    return Data(train, held_out, tested, task, hash_splits(rest, tested), scale=scale)


def undivided(whole: Split, test: int, task: Task, scale: float | None = None) -> Data:
    """The same with every example in train, in the order of the file, and with the same hash."""
    none = Split(whole.x[:0], whole.y[:0])
    return replace(divided(whole, test, 0, None, 0, task, scale), train=whole, validation=none, test=none)
