"""Whether what a dataset's `load` gave is what the rest relies on: a set of your own fails here, in words."""

from __future__ import annotations

from collections import Counter
from numbers import Real

import numpy as np

from pipeline.datasets import Data, Split
from pipeline.errors import UserError
from pipeline.models import Shapes
from pipeline.tasks import Task
from pipeline.tasks.classification import Classification

SPLITS = ("train", "validation", "test")


def check_data(data: Data, dataset: str) -> None:
    """Raise UserError where shapes, dtypes, targets or values break the contract of `Data` and of its task.

    `dataset` is its class's name. This runs at every load: no copy of the examples is made.
    """
    if not isinstance(data, Data):
        raise _broken(dataset, f"load() gives {type(data).__name__}", "give pipeline.datasets.Data")
    _check_scale(data.scale, dataset)
    _check_classes(data.task, dataset)
    shapes = data.task.shapes
    for name in SPLITS:
        split = getattr(data, name)
        _check_split(split, dataset, name)
        _check_shape(split.x, shapes, dataset, name)
        wrong = data.task.check(split.y)
        if wrong:
            raise _broken(dataset, f"{name}.y: {wrong}", f"the task is {type(data.task).__name__}")
        _check_values(split.x, data.scale, shapes, dataset, name)
    _check_normalisation(data, dataset)
    for name in ("test", "train"):  # the test of other data than a run's stands here as both
        if not len(getattr(data, name)):
            raise _broken(dataset, f"{name} holds no example", "give at least one")


def _check_scale(scale: object, dataset: str) -> None:
    """Refuse what cannot be divided by, in float32 either, which is what most backends are fed."""
    if scale is None:
        return
    with np.errstate(all="ignore"):
        usable = isinstance(scale, Real) and np.float32(scale) > 0 and np.isfinite(np.float32(scale))
    if not usable:
        raise _broken(dataset, f"scale={scale}", "x is divided by it: give a number that is positive in float32 too")


def _check_classes(task: Task, dataset: str) -> None:
    """Refuse classes whose names tables, figures and files could not tell apart."""
    names = task.classes if isinstance(task, Classification) else ()
    for name, count in Counter(names).items():
        if not isinstance(name, str):
            raise _broken(dataset, f"the name of a class is {name!r}, of type {type(name).__name__}", "give texts")
        if count > 1:
            raise _broken(dataset, f"two of its classes are called {name!r}", "give each its own name")


def _check_normalisation(data: Data, dataset: str) -> None:
    """Refuse a normalisation of the dataset's own that does not suit its channels."""
    by = data.normalisation
    if by is None:
        return
    channels = data.train.x.shape[-1]
    if not (len(by.mean) == len(by.std) == channels and np.isfinite([by.mean, by.std]).all() and min(by.std) > 0):
        wanted = f"give finite numbers, std above 0, one for each of {channels} channels"
        raise _broken(dataset, f"normalisation has mean={by.mean} and std={by.std}", wanted)


def _check_split(split: Split, dataset: str, name: str) -> None:
    for part, array in (("x", split.x), ("y", split.y)):
        if not isinstance(array, np.ndarray):
            raise _broken(dataset, f"{name}.{part} is a {type(array).__name__}", "give a NumPy array")
    if len(split.x) != len(split.y):
        raise _broken(dataset, f"{name} has {len(split.x)} x and {len(split.y)} y", "give one y for each x")


def _check_shape(x: np.ndarray, shapes: Shapes, dataset: str, name: str) -> None:
    if x.shape[1:] != shapes.x:
        wanted = ", ".join(["N", *map(str, shapes.x)])
        hint = "; grey images have C = 1" if len(shapes.x) == 3 and shapes.vocabulary is None else ""
        raise _broken(dataset, f"{name}.x has shape {x.shape}", f"its task says ({wanted}){hint}")
    if 0 in x.shape[1:]:
        raise _broken(dataset, f"{name}.x has shape {x.shape}: its examples hold no number", "give at least one")
    kinds = "iu" if shapes.vocabulary is not None else "buif"
    if x.dtype.kind not in kinds:
        what = "tokens are integers" if shapes.vocabulary is not None else "give integers or floating-point numbers"
        raise _broken(dataset, f"{name}.x has dtype {x.dtype}", what)


def _check_values(x: np.ndarray, scale: float | None, shapes: Shapes, dataset: str, name: str) -> None:
    """Refuse images that are not in [0, 1] once divided by `scale`, tokens beyond the vocabulary, and NaN."""
    if not x.size or (x.dtype.kind == "u" and scale is not None and np.iinfo(x.dtype).max <= scale):
        return  # the dtype alone keeps it: 8-bit images and a scale of 255
    low, high = (0 if x.dtype.kind in "bu" else x.min()), x.max()  # a NaN anywhere makes both of them NaN
    if x.dtype.kind == "f" and np.isnan(high):
        raise _broken(dataset, f"{name}.x holds nan", "give finite numbers")
    if shapes.vocabulary is not None:
        if low < 0 or high >= shapes.vocabulary:
            raise _broken(dataset, f"{name}.x holds tokens {low} to {high}", f"the vocabulary is {shapes.vocabulary}")
    elif scale is not None and not (low >= 0 and high <= scale):
        raise _broken(
            dataset, f"{name}.x holds values from {low} to {high}", f"divided by scale={scale} they must lie in [0, 1]"
        )
    elif not (np.isfinite(low) and np.isfinite(high)):
        raise _broken(dataset, f"{name}.x holds values from {low} to {high}", "give finite numbers")
    else:
        largest = max(low, high, key=lambda value: abs(float(value)))
        if abs(float(largest)) > float(np.finfo(np.float32).max):  # which most trainings compute in
            raise _broken(dataset, f"{name}.x holds {largest}", "give numbers that are finite in float32, to 3.4e38")


def _broken(dataset: str, found: str, wanted: str) -> UserError:
    return UserError(f"dataset={dataset}: {found}; {wanted} (see pipeline.datasets.Data)")
