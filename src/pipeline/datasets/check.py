"""Whether what a dataset's `load` gave is what the rest relies on: a set of your own fails here, in words."""

from __future__ import annotations

import numpy as np

from pipeline.datasets import Arrays, Split
from pipeline.errors import UserError

SPLITS = ("train", "validation", "test")


def check_arrays(data: Arrays, dataset: str) -> None:
    """Raise UserError where shapes, dtypes or labels break the contract of `Arrays`. `dataset` is its class's name."""
    if not isinstance(data, Arrays):
        raise _broken(dataset, f"load() gives {type(data).__name__}", "give pipeline.datasets.Arrays")
    for name in SPLITS:
        _check_split(getattr(data, name), len(data.classes), dataset, name)
    for name in ("train", "test"):
        if not len(getattr(data, name)):
            raise _broken(dataset, f"{name} holds no image", "give at least one")
    shapes = {getattr(data, name).x.shape[1:] for name in SPLITS}
    if len(shapes) > 1:
        raise _broken(dataset, f"images of {len(shapes)} shapes ({', '.join(map(str, shapes))})", "give them one shape")


def _check_split(split: Split, classes: int, dataset: str, name: str) -> None:
    x, y = split.x, split.y
    if x.ndim != 4:
        raise _broken(dataset, f"{name}.x has shape {x.shape}", "images are (N, H, W, C), grey ones with C = 1")
    if y.shape != x.shape[:1] or y.dtype != np.int64:
        labels = f"{name}.y has shape {y.shape} and dtype {y.dtype}"
        raise _broken(dataset, labels, f"labels are ({len(x)},) int64, one for each image")
    if len(y) and not (y.min() >= 0 and y.max() < classes):
        raise _broken(
            dataset, f"{name}.y holds labels {y.min()} to {y.max()}", f"{classes} classes are 0 to {classes - 1}"
        )


def _broken(dataset: str, found: str, wanted: str) -> UserError:
    return UserError(f"dataset={dataset}: {found}; {wanted} (see pipeline.datasets.Arrays)")
