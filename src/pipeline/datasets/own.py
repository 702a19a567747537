"""What the datasets of a user's own files and code share: arrays of any origin become splits, of classes or numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from pipeline.cli.streams import say_at_once
from pipeline.contracts import Dataset
from pipeline.datasets import Data, Split, duplicates
from pipeline.datasets.split import Share, hash_splits, hold_out
from pipeline.errors import UserError, cut
from pipeline.machine.regular_file import as_named
from pipeline.spec import spec
from pipeline.tasks import Targets, Task
from pipeline.tasks.classification import Classification
from pipeline.tasks.regression import Regression

BYTE_IMAGES = 255.0  # white in bytes; numbers beyond half of it are no images from 0 to 1, and none in deviations
IMAGES = 4  # dimensions: number, height, width, channels
NEARLY_BLACK = "no image has a pixel above 1 of 255: where 1 is white, save it as 255"
TASKS: Mapping[Targets, type[Task]] = {"classes": Classification, "numbers": Regression}
# What people call the parts.
NAMES = {"train": ("train",), "validation": ("validation", "val", "valid", "dev"), "test": ("test",)}
FEW, GAPS = 1000, 10  # as many classes need no example each; of more, every tenth at least has one, or they are ids
VALIDATION, TEST = 0.1, 0.2  # the shares unless they are set

Parts = Mapping[str, tuple[np.ndarray, np.ndarray]]


class OneClass(UserError):
    """All examples are of one class: nothing to train on, but a saved model may be measured on them."""


@dataclass(frozen=True)
class Shares:
    """The shares of the training examples that are held out where the data have no such part.

    `test_key`: the test's setting.
    """

    validation: float
    test: float
    test_key: str = "test"

    def notes(self, there: Collection[str]) -> tuple[str, ...]:
        """Of the shares that were set and have no effect, because the parts are `there`."""
        settings = {
            "validation": ("validation", self.validation, VALIDATION),
            "test": (self.test_key, self.test, TEST),
        }
        return tuple(
            f"dataset.{key}={share}: the data have a {part} part, so nothing is held out for it"
            for part, (key, share, default) in settings.items()
            if part in there and share != default
        )


@spec
class Own(Dataset):
    """The settings of each dataset of the user's examples, of classes or numbers.

    `targets`: "numbers" for a regression. `validation`: the share of the training examples held out where there is no
    such part.
    """

    of_user: ClassVar[bool] = True

    targets: Targets = "classes"
    validation: Share = VALIDATION

    @property
    def task(self) -> type[Task]:
        return TASKS[self.targets]


@spec
class OneFile(Own):
    """The settings of each dataset in one file.

    `file`: its path. `classes`: their names, in the order of their numbers. `test`: the share of the training examples
    held out where the file has no such part.
    """

    file: str | None = None
    classes: tuple[str, ...] = ()
    test: Share = TEST

    @property
    def user_files(self) -> tuple[Path, ...]:
        """What decides the result beside the config."""
        return () if self.file is None else (as_named(self.file),)

    def data_of(self, parts: Parts, seed: int, classes: Sequence[str] = ()) -> Data:
        """`data_of` the parts that were read. `classes`: their names where the settings have none. Raises UserError."""
        shares = Shares(self.validation, self.test)
        return data_of(parts, self.targets, self.classes or classes, shares, seed, f"dataset.file={self.file}")


def data_of(parts: Parts, targets: Targets, classes: Sequence[str], shares: Shares, seed: int, who: str) -> Data:
    """Data of `parts` (train, and test and validation if they are there); what is missing is held out of train.

    The test is then the same for every seed. `targets`: what y is. `classes`: their names; none: those that the
    targets hold. Raises UserError.
    """
    if targets == "classes":
        return classification(parts, classes, shares, seed, who)
    if classes:
        raise UserError("dataset.classes with dataset.targets=numbers: numbers have no classes; leave one of them out")
    real = {name: (x, numbers(y, who)) for name, (x, y) in parts.items()}
    widths = {y.shape[1] for _, y in real.values()}
    if len(widths) > 1:
        raise UserError(f"{who}: y of {' and '.join(map(str, sorted(widths)))} numbers; give all parts the same number")
    return _data(real, lambda shape: Regression(shape, widths.pop()), shares, seed, who)


def classification(parts: Parts, classes: Sequence[str], shares: Shares, seed: int, who: str) -> Data:
    """`data_of` classes."""
    parts = {name: (x, _as_text(y, who)) for name, (x, y) in parts.items()}
    targets = {name: y for name, (_, y) in parts.items()}
    _check_shapes(targets, who)
    if not classes:
        _check_kinds(targets, who)
    named = list(classes) or class_names([*targets.values()], who)
    counts = Counter(named)
    twice = next((name for name in named if counts[name] > 1), None)
    if twice is not None:
        raise UserError(f"{who}: two of its classes are called {twice}")
    if len(named) < 2:
        raise OneClass(f"{who}: all its targets are of one class, {', '.join(named)}; give examples of two at least")
    labels = {name: (x, numbered(y, named, who)) for name, (x, y) in parts.items()}
    return _data(labels, lambda shape: Classification(shape, tuple(named)), shares, seed, who)


def _data(parts: Parts, task: Callable[[tuple[int, ...]], Task], shares: Shares, seed: int, who: str) -> Data:
    """`task`: of examples of a shape."""
    of_bytes = {name: x.dtype == np.uint8 for name, (x, _) in parts.items()}
    odd = next((name for name, one in of_bytes.items() if one != of_bytes["train"]), None)
    if odd is not None:  # bytes go to 255, and other numbers mostly to 1
        dtypes = [f"{name} {parts[name][0].dtype}" for name in ("train", odd)]
        raise UserError(f"{who}: x of {' and '.join(dtypes)}; give all parts the same dtype, in the same unit")
    splits = {name: Split(images(x), y) for name, (x, y) in parts.items()}
    for name, split in splits.items():
        if len(split.x) != len(split.y):
            raise UserError(f"{who}: {name} has {len(split.x)} x and {len(split.y)} y; give one y for each x")
    read = list(splits.values())
    if not (shares.validation or shares.test):  # as the file has them: stage=evaluate writes a line for each
        none = Split(splits["train"].x[:0], splits["train"].y[:0])
        splits = {"validation": none, "test": none, **splits}
    if "test" not in splits:
        shown = f"{who}: dataset.{shares.test_key}={shares.test}"
        splits["train"], splits["test"] = held_out(splits["train"], shares.test, 0, shown)
    if "validation" not in splits:
        shown = f"{who}: dataset.validation={shares.validation}"
        splits["train"], splits["validation"] = held_out(splits["train"], shares.validation, seed, shown)
    ordered = (splits["train"], splits["validation"], splits["test"])
    scale, undivided = _scale([split.x for split in ordered])
    notes = (*shares.notes(parts), *undivided, *duplicates.notes(splits))
    return Data(*ordered, task(ordered[0].x.shape[1:]), hash_splits(*read), scale=scale, notes=notes)


def _scale(parts: Sequence[np.ndarray]) -> tuple[float | None, tuple[str, ...]]:
    """What x is divided by: bytes by 255, unless all are 0 or 1. A note where images of others are as large."""
    x = parts[0]
    if x.dtype == np.uint8:
        return (BYTE_IMAGES if any(part.max(initial=0) > 1 for part in parts) else 1.0), ()
    if x.dtype.kind not in "iuf" or x.ndim != IMAGES:
        return None, ()
    high = max(part.max(initial=0) for part in parts)
    large = high > BYTE_IMAGES / 2 and (high <= BYTE_IMAGES or not (x[:8] % 1).any())
    are_bytes = x.dtype.kind in "iu" or large
    said = f"images of {x.dtype} up to {high:.0f} enter as they are"
    noted = high > 1 and are_bytes
    return None, (f"{said}: save them as uint8, which is divided by 255, or divide them",) if noted else ()


def of_files(data: Data) -> Data:
    """Data of images that were read from files, in which 255 is white: stage=predict sees one of them alone."""
    if data.scale != 1:
        return data
    return replace(data, scale=BYTE_IMAGES, notes=(*data.notes, NEARLY_BLACK))


def _check_shapes(targets: Mapping[str, np.ndarray], who: str) -> None:
    """Refuse labels that are rows or images of labels; numbers that are no labels are refused by their dtype."""
    for name, y in targets.items():
        if y.dtype.kind in "iubU" and y.shape not in ((len(y),), (len(y), 1)):
            raise UserError(f"{who}: {name}.y has shape {y.shape}; labels are (N,), one for each example")


def _as_text(y: np.ndarray, who: str) -> np.ndarray:
    """Names in bytes as text; other targets as they are. Raises UserError for bytes that are not UTF-8."""
    try:
        return np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
    except UnicodeDecodeError as error:
        raise UserError(f"{who}: a target is {error.object!r}, which is not UTF-8") from error


def _check_kinds(targets: Mapping[str, np.ndarray], who: str) -> None:
    """Refuse names beside integers: as names, integers would be numbered in another order."""
    named = {name: y.dtype.kind == "U" for name, y in targets.items()}
    odd = next((name for name, one in named.items() if one != named["train"]), None)
    if odd is not None:
        dtypes = [f"{name} {targets[name].dtype}" for name in ("train", odd)]
        raise UserError(f"{who}: y of {' and '.join(dtypes)}; give all parts names, or all of them integers")


def named_parts(there: Collection[str]) -> dict[str, str]:
    """What each part of a user's data is called, of the names `there`: the first of NAMES, where it has several."""
    named = {part: next((name for name in names if name in there), None) for part, names in NAMES.items()}
    return {part: name for part, name in named.items() if name is not None}


def say_left_out(what: Sequence[str], who: str) -> None:
    """Say what lies beside the parts, and is read by nobody."""
    if what:
        say_at_once(f"{who}: leaves out {cut(', '.join(what), 300)}")


def channels_last(x: np.ndarray, who: str) -> np.ndarray:
    """Images (N, C, H, W) as (N, H, W, C). Raises UserError for what has other dimensions."""
    if x.ndim != 4:
        raise UserError(f"{who} with dataset.layout=channels_first: x has shape {x.shape}; images are (N, C, H, W)")
    return np.moveaxis(x, 1, -1)


def held_out(whole: Split, share: float, seed: int, key: str) -> tuple[Split, Split]:
    """What is left, and what is held out."""
    count = round(share * len(whole))
    if share and not 0 < count < len(whole):
        raise UserError(f"{key}: holds {count} of {len(whole)} training examples out; leave some on both sides")
    return hold_out(whole, count, None, seed)


def images(x: np.ndarray) -> np.ndarray:
    """Grey images (N, H, W) of bytes as (N, H, W, 1); everything else as it is."""
    return x[..., np.newaxis] if x.dtype == np.uint8 and x.ndim == 3 else x


def class_names(targets: Sequence[np.ndarray], who: str) -> list[str]:
    """The names of the classes that targets hold: their own, or 0 to the largest number."""
    together = np.concatenate([target.reshape(-1) for target in targets])
    if together.dtype.kind == "U":
        return sorted({str(name) for name in together})
    if together.dtype.kind not in "iub" or not len(together) or together.min() < 0:
        integers = together.dtype.kind in "iu" and len(together)
        have = f"a class {together.min()}" if integers else f"dtype {together.dtype}"
        raise UserError(
            f"{who}: its targets have {have}; classes are names or integers from 0 on "
            "(dataset.targets=numbers for real numbers; for other tasks write a dataset: docs/own.md)"
        )
    largest, different = int(together.max()), len(np.unique(together))
    if largest >= FEW and largest > GAPS * different:
        raise UserError(
            f"{who}: its targets are {different} different labels, the largest {largest}; number them from 0"
        )
    return [str(number) for number in range(largest + 1)]


def numbered(y: np.ndarray, classes: Sequence[str], who: str) -> np.ndarray:
    """Targets (N,) or (N, 1) as the numbers (N,) of their classes."""
    flat = y.reshape(-1)
    if flat.dtype.kind in "iub":
        return flat.astype(np.int64)
    if flat.dtype.kind != "U":
        raise UserError(f"{who}: its targets have dtype {y.dtype}; classes are names or integers from 0 on")
    places = {name: number for number, name in enumerate(classes)}
    unknown = next((str(name) for name in flat if str(name) not in places), None)
    if unknown is not None:
        raise UserError(f"{who}: a target is {unknown!r}; dataset.classes has {', '.join(classes)}")
    return np.array([places[str(name)] for name in flat], np.int64)


def numbers(y: np.ndarray, who: str) -> np.ndarray:
    """Targets (N,) or (N, D) of real numbers as (N, D), in float32 or float64."""
    if y.dtype.kind not in "iuf" or y.ndim not in (1, 2) or not y.size:
        raise UserError(
            f"{who}: its targets have dtype {y.dtype} and shape {y.shape}; dataset.targets=numbers takes real "
            "numbers (N,) or (N, D)"
        )
    if not (np.abs(y) <= np.finfo(np.float32).max).all():
        raise UserError(f"{who}: its targets hold numbers that are not finite in float32; leave these examples out")
    return y.reshape(len(y), -1).astype(np.float32 if y.dtype == np.float32 else np.float64)
