"""Arrays of your own in one .npz file: x and y, or x_train, y_train, x_test, y_test, as Keras's datasets have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from zipfile import is_zipfile

import numpy as np

from pipeline.datasets import Data
from pipeline.datasets.own import OneFile, channels_last, named_parts, say_left_out
from pipeline.errors import UserError, cut
from pipeline.machine.regular_file import open_regular
from pipeline.spec import spec


@spec
class Npz(OneFile):
    """x of any shape, images as (N, H, W, C) or grey bytes (N, H, W); y classes, or with `targets: numbers` real
    numbers (N,) or (N, D). `layout`: "channels_first" for images (N, C, H, W).
    """

    layout: Literal["channels_last", "channels_first"] = "channels_last"

    def load(self, root: Path, seed: int) -> Data:
        """Read the file. Raises UserError for one that is missing, damaged or lacks arrays."""
        if self.file is None:
            raise UserError("dataset.file=null: name a .npz file with x and y, or x_train, y_train, x_test and y_test")
        shown = f"dataset.file={self.file}"
        try:
            with open_regular(self.user_files[0]) as file, np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except OSError as error:
            raise UserError(f"{shown}: {(error.strerror or str(error)).lower()}") from error
        except Exception as error:  # zipfile and zlib raise types of their own for damaged files
            if not is_zipfile(self.user_files[0]):
                raise UserError(f"{shown}: not a .npz file; {self._how_to_make_one()}") from error
            raise UserError(f"{shown}: not a readable .npz ({type(error).__name__}: {error})") from error
        parts = _parts(arrays, shown)
        if self.layout == "channels_first":
            parts = {part: (channels_last(x, shown), y) for part, (x, y) in parts.items()}
        return self.data_of(parts, seed)

    def _how_to_make_one(self) -> str:
        if str(self.file).lower().endswith(".csv"):
            return "dataset=csv reads a .csv"
        return "np.savez('mine.npz', x=x, y=y) writes one of arrays"


def _parts(arrays: Mapping[str, np.ndarray], shown: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """x and y of each part of the file. Raises UserError where one is missing, or all of the data lie there too."""
    called = named_parts({name[2:] for name in arrays if name[:2] in ("x_", "y_")})
    pairs = {part: (f"x_{name}", f"y_{name}") for part, name in called.items()}
    if pairs and {"x", "y"} <= arrays.keys():
        also = next(name for name in pairs[next(iter(pairs))] if name in arrays)
        raise UserError(
            f"{shown}: has x and {also}; give either x and y, which are split, or the parts: with both, test examples "
            "could be among the training examples"
        )
    pairs = pairs or {"train": ("x", "y")}
    lacking = next((name for pair in pairs.values() for name in pair if name not in arrays), None)
    if "train" not in pairs or lacking in ("x", "y"):
        has = f"has the arrays {cut(', '.join(arrays), 200)}" if arrays else "has no arrays"
        raise UserError(f"{shown}: {has}; give x and y, or x_train and y_train")
    if lacking is not None:
        alone = f"{'y' if lacking[0] == 'x' else 'x'}{lacking[1:]}"
        raise UserError(f"{shown}: has {alone} and no {lacking}; give both, or leave both out")
    used = {name for pair in pairs.values() for name in pair}
    single = next((name for name in arrays if name in used and not arrays[name].ndim), None)
    if single is not None:
        raise UserError(f"{shown}: {single} is one value and not an array of examples; give (N, ...)")
    say_left_out([name for name in arrays if name not in used], shown)
    return {part: (arrays[x], arrays[y]) for part, (x, y) in pairs.items()}
