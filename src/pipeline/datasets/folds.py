"""Folds of a pool of examples: each is the test once. Which example is in which fold depends on no seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.datasets import Data, Split, duplicates
from pipeline.datasets.own import held_out
from pipeline.datasets.pool import Pool
from pipeline.datasets.split import check_sizes, hold_out
from pipeline.errors import UserError, cut, plural
from pipeline.tasks import Task
from pipeline.tasks.classification import Classification

SEED = 0  # of the division: the same for every run, so that runs with other settings are compared fold by fold


def division(pool: Pool, folds: int, who: str) -> np.ndarray:
    """The fold (N,) of each example of the pool, from 0: at random, of classes with about the same share of each.

    `who`: the setting that says how many. Raises UserError for fewer examples than folds, of a class too.
    """
    from sklearn.model_selection import KFold, StratifiedKFold  # takes a second

    y, task = pool.data.train.y, pool.data.task
    if len(y) < folds:
        raise UserError(f"{who}: there are {len(y)} examples; choose {len(y)} folds at most")
    classes = task.targets == "classes"
    if classes:
        _check_classes(y, task, folds, who)
    kind = StratifiedKFold if classes else KFold
    found = np.empty(len(y), np.int64)
    for number, (_, rows) in enumerate(kind(folds, shuffle=True, random_state=SEED).split(y, y)):
        found[rows] = number
    return found


def _check_classes(y: np.ndarray, task: Task, folds: int, who: str) -> None:
    labels, counts = np.unique(y, return_counts=True)
    few = [(int(n), int(label)) for n, label in zip(counts, labels, strict=True) if n < folds]
    if not few:
        return
    least, label = min(few)
    name = task.classes[label] if isinstance(task, Classification) else label
    others = f" ({plural(len(few) - 1, 'other')} also fewer than {folds})"
    choose = f"choose {least} folds at most, or " if least > 1 else ""
    raise UserError(
        f"{who}: class {cut(name)} has {plural(least, 'example')}{others if len(few) > 1 else ''}, and each fold tests "
        f"some of every class; {choose}leave such classes out"
    )


def fold_of(pool: Pool, folds: int, fold: int, seed: int) -> Data:
    """The data with a fold as the test, in the pool's order; `seed` draws the validation from the others.

    Raises UserError where too few examples are left.
    """
    who, whole = f"dataset.folds={folds}", pool.data.train
    of = division(pool, folds, who)
    rest, test = (Split(whole.x[rows], whole.y[rows]) for rows in (of != fold, of == fold))
    if isinstance(pool.validation, int):
        check_sizes(pool.validation, pool.train_size, len(rest))
        train, validation = hold_out(rest, pool.validation, pool.train_size, seed)
    else:
        train, validation = held_out(rest, pool.validation, seed, f"{who}: dataset.validation={pool.validation:.4g}")
    shared = duplicates.leakage({"train": train, "validation": validation, "test": test})
    notes = (*pool.data.notes, *shared)
    return replace(pool.data, train=train, validation=validation, test=test, notes=notes)
