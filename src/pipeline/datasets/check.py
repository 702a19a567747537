"""Whether what a dataset's `load` gave is what the rest relies on: a set of your own fails here, in words."""

from __future__ import annotations

from numbers import Real

import numpy as np

from pipeline.datasets import Arrays, Split
from pipeline.errors import UserError

SPLITS = ("train", "validation", "test")


def check_arrays(data: Arrays, dataset: str) -> None:
    """Raise UserError where shapes, dtypes, labels or values break the contract of `Arrays`.

    `dataset` is its class's name. This runs at every load: no copy of the images is made.
    """
    if not isinstance(data, Arrays):
        raise _broken(dataset, f"load() gives {type(data).__name__}", "give pipeline.datasets.Arrays")
    _check_scale(data.scale, dataset)
    for name in SPLITS:
        _check_split(getattr(data, name), len(data.classes), dataset, name)
        _check_values(getattr(data, name).x, data.scale, dataset, name)
    for name in ("train", "test"):
        if not len(getattr(data, name)):
            raise _broken(dataset, f"{name} holds no image", "give at least one")
    shapes = {getattr(data, name).x.shape[1:] for name in SPLITS}
    if len(shapes) > 1:
        raise _broken(dataset, f"images of {len(shapes)} shapes ({', '.join(map(str, shapes))})", "give them one shape")


def _check_scale(scale: object, dataset: str) -> None:
    """Refuse what cannot be divided by, in float32 either, which is what most backends are fed."""
    with np.errstate(all="ignore"):
        usable = isinstance(scale, Real) and np.float32(scale) > 0 and np.isfinite(np.float32(scale))
    if not usable:
        raise _broken(dataset, f"scale={scale}", "images are divided by it: give a positive number, in float32 too")


def _check_split(split: Split, classes: int, dataset: str, name: str) -> None:
    x, y = split.x, split.y
    for part, array in (("x", x), ("y", y)):
        if not isinstance(array, np.ndarray):
            raise _broken(dataset, f"{name}.{part} is a {type(array).__name__}", "give a NumPy array")
    if x.ndim != 4:
        raise _broken(dataset, f"{name}.x has shape {x.shape}", "images are (N, H, W, C), grey ones with C = 1")
    if y.shape != x.shape[:1] or y.dtype != np.int64:
        labels = f"{name}.y has shape {y.shape} and dtype {y.dtype}"
        raise _broken(dataset, labels, f"labels are ({len(x)},) int64, one for each image")
    if len(y) and not (y.min() >= 0 and y.max() < classes):
        raise _broken(
            dataset, f"{name}.y holds labels {y.min()} to {y.max()}", f"{classes} classes are 0 to {classes - 1}"
        )


def _check_values(x: np.ndarray, scale: float, dataset: str, name: str) -> None:
    """Refuse images that are not numbers in [0, 1] once divided by `scale`."""
    if x.dtype.kind not in "buif":
        raise _broken(dataset, f"{name}.x has dtype {x.dtype}", "images are integers or floating-point numbers")
    if not x.size or (x.dtype.kind == "u" and np.iinfo(x.dtype).max <= scale):
        return  # the dtype alone keeps it: 8-bit images and a scale of 255
    low, high = (0 if x.dtype.kind in "bu" else x.min()), x.max()  # a NaN anywhere makes both of them NaN
    if low >= 0 and high <= scale:
        return
    if np.isnan(high):
        raise _broken(dataset, f"{name}.x holds nan", "images are finite numbers")
    raise _broken(
        dataset, f"{name}.x holds values from {low} to {high}", f"divided by scale={scale} they must lie in [0, 1]"
    )


def _broken(dataset: str, found: str, wanted: str) -> UserError:
    return UserError(f"dataset={dataset}: {found}; {wanted} (see pipeline.datasets.Arrays)")
