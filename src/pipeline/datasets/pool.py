"""All examples of a dataset, however it would divide them: as a test for a saved model, and as a pool for folds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.contracts import Dataset, offers
from pipeline.datasets import Data, Split
from pipeline.datasets.check import SPLITS, check_data
from pipeline.errors import Readable, UserError, raised
from pipeline.machine.cache_folder import cache_root
from pipeline.spec import choice, is_shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SHARES = ("validation", "test", "test_share")
SHARED_NUMBERS = (
    "it normalises its examples by the same numbers in every fold: where load() measures them, each test has a part in "
    "them (leakage); dataset.normalise=true measures the training part of each fold alone"
)
SEED = 0  # whatever that of the run: runs of several seeds have the same examples, in one order


@dataclass(frozen=True)
class Pool:
    """`data`: all examples are the training split, in an order that no seed changes. `validation`: how many (int), or
    which share (float), of those that a fold leaves are held out; `train_size`: how many are trained on (None: all)."""

    data: Data
    validation: int | float
    train_size: int | None


def read(dataset: Dataset, seed: int) -> Data:
    """What `load` gives. Of a dataset of the user's, whatever that raises is the user's to mend: a UserError."""
    return _called(dataset, "load", lambda root: dataset.load(root, seed))


def _called(dataset: Dataset, name: str, load: Callable[[Path], Data]) -> Data:
    try:
        return load(cache_root(dataset.cache))
    except Exception as error:
        if isinstance(error, Readable) or is_shipped(dataset):
            raise
        raise raised(f"dataset={choice(dataset)}: {name}", error) from error


def undivided(dataset: Dataset) -> Data:
    """The data with no share held out: of a few examples none can be."""
    if is_shipped(dataset):  # one of the user's may take no share of 0
        found = {name: 0.0 for name in SHARES if isinstance(getattr(dataset, name, None), float)}
        dataset = replace(dataset, **found)  # type: ignore[type-var]  # a spec is a dataclass
    return read(dataset, SEED)


def joined(data: Data, order: Iterable[str] = SPLITS) -> Split:
    """The examples of all splits in one."""
    parts = [part for part in (getattr(data, name) for name in order) if len(part)]
    if len(parts) == 1:
        return parts[0]  # which may be larger than memory
    return Split(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y")))


def pool_of(dataset: Dataset, who: str) -> Pool:
    """All examples, to be divided into folds. `who`: the setting that asks for folds.

    Raises UserError where the data have a test or a validation part that is not made here.
    """
    name = type(dataset).__name__.lower()
    share = 0.0
    if not is_shipped(dataset):  # its settings may mean anything: of the validation as many as it holds out itself
        data = read(dataset, SEED)
        check_data(data, name)  # before parts of different shapes are joined
        share = len(data.validation) / (len(data.train) + len(data.validation))
    if offers(dataset, Dataset.load_pool):
        data = _called(dataset, "load_pool", dataset.load_pool)
        check_data(replace(data, test=data.train), name)
    elif is_shipped(dataset):
        data = undivided(dataset)
        _refuse_parts(dataset, data, who)
    none, notes = Split(data.train.x[:0], data.train.y[:0]), data.notes
    if data.normalisation is not None:
        notes = (*notes, f"dataset={choice(dataset)}: {SHARED_NUMBERS}")
    whole = replace(data, train=joined(data), validation=none, test=none, held_out=None, notes=notes)
    if is_shipped(dataset):
        return Pool(whole, getattr(dataset, "validation", share), getattr(dataset, "train_size", None))
    return Pool(whole, share, None)


def _refuse_parts(dataset: Dataset, data: Data, who: str) -> None:
    """Refuse data that come with a test or a validation: their makers, or the user, divided them for a reason."""
    for name in ("test", "validation"):
        if len(getattr(data, name)):
            raise UserError(
                f"{who} with dataset={choice(dataset)}: the data have a {name} part, which folds would mix with the "
                "others; leave that part out of the data, or train without folds"
            )
