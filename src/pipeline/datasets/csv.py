"""A table of your own: a .csv file whose first line names its columns, each further line an example."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.datasets import Data, number_files
from pipeline.datasets.own import OneFile
from pipeline.errors import UserError, cut
from pipeline.spec import is_number, spec

KEY = "dataset.file"


@spec
class Csv(OneFile):
    """`target`: the column that is predicted; None: the last. `features`: the columns of numbers that it is predicted
    from; none: all others.
    """

    target: str | None = None
    features: tuple[str, ...] = ()

    def load(self, root: Path, seed: int) -> Data:
        """Read the file. Raises UserError for one that is missing, lacks a column or has a cell without a number."""
        if self.file is None:
            raise UserError(f"{KEY}=null: name a .csv file whose first line names its columns")
        shown, table = f"{KEY}={self.file}", number_files.columns(KEY, self.file)
        target, features = self._chosen(table, shown)
        y, classes = self._targets(table, target, shown)
        x = np.stack([_numbers(table, name, features, shown) for name in features], axis=1)
        data = self.data_of({"train": (x, y)}, seed, classes)
        named = hashlib.sha256(json.dumps([*features, data.sha256]).encode()).hexdigest()
        return replace(data, columns=tuple(features), sha256=named)

    def _chosen(self, table: Mapping[str, Sequence[str]], shown: str) -> tuple[str, Sequence[str]]:
        """The column that is predicted and those that it is predicted from. Raises UserError."""
        names = list(table)
        target = names[-1] if self.target is None else self.target
        for key, name in (("target", target), *(("features", one) for one in self.features)):
            if name not in table:
                raise UserError(
                    f"dataset.{key}: {shown} has no column {cut(name)}; it has {cut(', '.join(names), 300)}"
                )
        features = self.features or [name for name in names if name != target]
        if target in features:
            raise UserError(f"dataset.features has the target, {target}: it would be predicted from itself")
        if not features:
            raise UserError(f"{shown}: has one column, {target}; give others that it is predicted from")
        return target, features

    def _targets(self, table: Mapping[str, Sequence[str]], target: str, shown: str) -> tuple[np.ndarray, Sequence[str]]:
        """The targets, and the names of the classes in order. Raises UserError."""
        values = table[target]
        if self.targets == "numbers":
            return _numbers(table, target, (), shown), ()
        numbers = all(map(is_number, values))
        if numbers and any(float(value) % 1 for value in values):
            real = next(value for value in values if float(value) % 1)
            raise UserError(
                f"{shown}: the target {target} has {real}, a number; for a regression stage=train "
                "dataset.targets=numbers loss=squared_error"
            )
        if "" in values:
            raise UserError(f"{shown}: row {values.index('') + 1} has no {target}, the target; leave the row out")
        return np.array(values), sorted(set(values), key=float if numbers else str)


def _numbers(table: Mapping[str, Sequence[str]], name: str, features: Sequence[str], shown: str) -> np.ndarray:
    """A column (N,) in float64. Raises UserError for its first cell that holds none."""
    wrong = next((at for at, cell in enumerate(table[name]) if not is_number(cell)), None)
    if wrong is None:
        return np.array(table[name], np.float64)
    cell = cut(table[name][wrong])
    numbers = [one for one in features if all(map(is_number, table[one]))]
    use = f"; columns of numbers: dataset.features=[{cut(','.join(numbers), 300)}]" if numbers else ""
    raise UserError(f"{shown}: row {wrong + 1} has {cell!r} for {name}, which is not a number{use}")
