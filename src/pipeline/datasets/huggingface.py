"""A Hugging Face dataset on disk, as `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote it. Nothing is fetched.

Arrow files, read by the package `datasets`: https://huggingface.co/docs/datasets/package_reference/loading_methods
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from pipeline.datasets import Data
from pipeline.datasets.own import (
    TEST,
    Own,
    Shares,
    channels_last,
    data_of,
    named_parts,
    of_files,
    say_left_out,
)
from pipeline.datasets.pixels import GREY, images_in, pixels, said_of_several
from pipeline.datasets.split import Share
from pipeline.errors import UserError, cut
from pipeline.machine.regular_file import as_named
from pipeline.runs.json_files import read_json
from pipeline.spec import spec

MARKS = ("state.json", "dataset_dict.json")  # in the folder of a Dataset, of a DatasetDict


@spec
class HuggingFace(Own):
    """`path`: the folder. `keys`: the columns of x and y: images or numbers, and classes (`targets: numbers`:
    real numbers). `layout`: "channels_first" for arrays (C, H, W).

    `size`: height and width that images are resized to (None: as they are, all of one size). `channels`: 1 for grey, 3
    for colours (None: as the images have them). `validation`, `test`: the share of the training examples held out
    where the folder has no such split.
    """

    packages: ClassVar[tuple[str, ...]] = ("datasets", "pillow")

    path: str | None = None
    keys: tuple[str, str] = ("image", "label")
    layout: Literal["channels_last", "channels_first"] = "channels_last"
    size: tuple[PositiveInt, PositiveInt] | None = None
    channels: Literal[1, 3] | None = None
    test: Share = TEST

    @property
    def user_files(self) -> tuple[Path, ...]:
        """What decides the result beside the config."""
        root = as_named(self.path or "")
        if self.path is None or not any((root / name).is_file() for name in MARKS):
            return ()  # not such a folder, which may hold anything
        return tuple(sorted(path for path in root.rglob("*") if path.is_file()))

    def load(self, root: Path, seed: int) -> Data:
        """Read the folder. Raises UserError for one that is missing or damaged, and for columns that it lacks."""
        if self.path is None:
            raise UserError("dataset.path=null: name a folder that Dataset.save_to_disk wrote")
        shown = f"dataset.path={self.path}"
        splits = self._splits(shown)
        x_name, y_name = self.keys
        for name, split in splits.items():
            lacking = [key for key in self.keys if key not in split.column_names]
            if lacking:
                columns = ", ".join(split.column_names)
                raise UserError(
                    f"{shown}: {name} has no column {lacking[0]}; it has {cut(columns, 300)}: name those of x and y by "
                    "dataset.keys"
                )
        counts: list[int] = []
        parts = {
            name: (
                self._examples(split[x_name], _dtype(split.features[x_name]), f"{shown}: {name}.{x_name}", counts),
                _targets(split[y_name], f"{shown}: {name}.{y_name}"),
            )
            for name, split in splits.items()
        }
        names = {part: getattr(split.features[y_name], "names", ()) for part, split in splits.items()}
        named = names["train"] if self.targets == "classes" else ()  # of a ClassLabel: each split has its own
        if named:
            parts = {
                name: (x, as_numbered(y, names[name], named, f"{shown}: {name}.{y_name}"))
                for name, (x, y) in parts.items()
            }
        data = data_of(parts, self.targets, named, Shares(self.validation, self.test), seed, shown)
        data = replace(data, notes=(*data.notes, *said_of_several(counts)))
        return of_files(data) if _dtype(splits["train"].features[x_name]) is None else data

    def _splits(self, shown: str) -> dict[str, Any]:
        """The splits that the folder has, by our names; one without any is all to train on."""
        try:
            from datasets import load_from_disk
        except ImportError as error:  # a folder of the user's with that name
            raise UserError(f"dataset=huggingface: {error}; `import datasets` finds another module here") from error
        root = as_named(str(self.path))
        written = [*root.glob("state.json"), *root.glob("*/state.json")]
        empty = next((file.parent for file in written if read_json(file).get("_data_files") == []), None)
        if empty is not None:  # load_from_disk fails without a word of it
            raise _no_examples(shown, "" if empty == root else empty.name)
        try:
            found: Any = load_from_disk(str(root))
        except Exception as error:  # pyarrow raises its own types for damaged files
            raise UserError(
                f"{shown}: not a folder that Dataset.save_to_disk wrote ({type(error).__name__}: {cut(error, 200)})"
            ) from error
        alone = not isinstance(found, Mapping)
        if alone:
            found = {"train": found}
        if "train" not in found:
            raise UserError(f"{shown}: has the splits {', '.join(map(str, found))}; one has to be called train")
        called = named_parts(list(map(str, found)))
        say_left_out([f"the split {name}" for name in found if name not in called.values()], shown)
        filtered = next((name for name in called.values() if not len(found[name])), None)
        if filtered is not None:
            raise _no_examples(shown, "" if alone else filtered)
        return {part: found[name].with_format(None) for part, name in called.items()}

    def _examples(self, column: Any, dtype: np.dtype[Any] | None, shown: str, counts: list[int]) -> np.ndarray:
        """A column as one array (N, ...). Adds to `counts` how many images the file of each image holds."""
        found, arrays = self.channels, []
        for number, value in enumerate(column):
            if value is None:
                raise _has_none(shown, number)
            image = _image(value, shown)
            if image is None:
                arrays.append(_array(value, dtype, shown))
                continue
            channels: Literal[1, 3] = self.channels or (1 if image.mode in GREY else 3)
            found = found or channels
            if channels != found:
                raise UserError(f"{shown}: holds grey and coloured images; set dataset.channels to 1 or 3")
            counts.append(images_in(image))
            arrays.append(pixels(image, self.size, channels, shown))
        shapes = sorted({array.shape for array in arrays})
        if len(shapes) != 1:
            sizes = " and ".join(map(str, shapes[:2])) or "none"
            raise UserError(
                f"{shown}: examples of the shapes {sizes}; dataset.size=[height,width] resizes images to one"
            )
        x = np.stack(arrays)
        if self.layout == "channels_last":
            return x
        if counts:
            raise UserError(f"{shown}: holds images and no arrays; leave out dataset.layout=channels_first")
        return channels_last(x, shown)


def _no_examples(shown: str, split: str) -> UserError:
    return UserError(
        f"{shown}: the split {split} has no examples; leave it out" if split else f"{shown}: has no examples"
    )


def _dtype(feature: Any) -> np.dtype[Any] | None:
    """The dtype of a column of numbers, or of lists of them."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    try:
        return np.dtype(feature.dtype)
    except (AttributeError, TypeError, ValueError):  # images, text, decimals
        return None


def _array(value: Any, dtype: np.dtype[Any] | None, shown: str) -> np.ndarray:
    try:
        found = np.asarray(value, dtype)
    except (TypeError, ValueError) as error:
        raise UserError(f"{shown}: holds an example that is not an array of numbers ({cut(error, 200)})") from error
    if found.dtype.kind not in "biuf":
        raise UserError(f"{shown}: holds an example that is not an array of numbers ({type(value).__name__})")
    return found


def _targets(column: Any, shown: str) -> np.ndarray:
    values = list(column)
    missing = next((number for number, value in enumerate(values) if value is None), None)
    if missing is not None:
        raise _has_none(shown, missing)
    try:
        return np.asarray(values)
    except ValueError as error:
        raise UserError(f"{shown}: holds lists of several lengths; give each example as many numbers") from error


def _has_none(shown: str, number: int) -> UserError:
    return UserError(f"{shown}: example {number} (from 0) has none; leave it out by Dataset.filter")


def _image(value: Any, shown: str) -> Any:
    """A Pillow image, of one as `datasets` decodes it or of the bytes of a file; None of anything else."""
    if isinstance(value, Mapping) and value.get("bytes"):
        value = value["bytes"]
    if not isinstance(value, bytes):
        return value if hasattr(value, "convert") else None
    from PIL import Image

    try:
        return Image.open(io.BytesIO(value))
    except OSError as error:
        raise UserError(f"{shown}: holds bytes that are not a readable image ({error})") from error


def as_numbered(y: np.ndarray, names: Sequence[str], known: Sequence[str], shown: str) -> np.ndarray:
    """Class numbers of a split that has these names, by train's, the known ones. Raises UserError for another one."""
    if not names or list(names) == list(known):
        return y
    used = [name for number, name in enumerate(names) if (y == number).any()]
    lacking = [name for name in used if name not in known]
    if lacking:
        has = cut(", ".join(known), 300)
        raise UserError(f"{shown}: has the class {lacking[0]}, which train does not have; it has {has}")
    found = y.copy()
    for number, name in enumerate(names):
        if name in used:
            found[y == number] = known.index(name)
    return found
