"""A table of your own: a .csv file whose first line names its columns, each further line an example."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.datasets import Data, number_files
from pipeline.datasets.own import OneFile
from pipeline.datasets.table_classes import class_names, notes
from pipeline.errors import UserError, cut, listed
from pipeline.spec import is_number, spec

KEY = "dataset.file"
LARGEST = float(np.finfo(np.float32).max)  # which most trainings compute in


class Table(NamedTuple):
    """What was read: `x` (N, columns) in float64, and the cells of the target (N,), numbers or texts."""

    x: np.ndarray
    targets: np.ndarray


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
        shown, rows = f"{KEY}={self.file}", number_files.named_rows(KEY, self.file)
        head = next(rows)
        target, features = self._chosen(head, shown)
        numbers = self.targets == "numbers"
        table = _read(rows, head, features, target, shown, numbers=numbers)
        classes = [] if numbers else class_names(table.targets, target, shown)
        data = self.data_of({"train": (table.x, table.targets)}, seed, classes)
        named = hashlib.sha256(json.dumps([*features, data.sha256]).encode()).hexdigest()
        found = (*notes(classes, target), *([] if self.features else _of_counts(table.x, features)), *data.notes)
        return replace(data, columns=tuple(features), sha256=named, notes=found)

    def _chosen(self, names: Sequence[str], shown: str) -> tuple[str, Sequence[str]]:
        """The column that is predicted and those that it is predicted from. Raises UserError."""
        target = names[-1] if self.target is None else self.target
        for key, name in (("target", target), *(("features", one) for one in self.features)):
            if name not in names:
                raise UserError(
                    f"dataset.{key}: {shown} has no column {cut(name)}; it has {cut(', '.join(names), 300)}"
                )
        features = self.features or [name for name in names if name != target]
        if target in features:
            raise UserError(f"dataset.features has the target, {target}: it would be predicted from itself")
        twice = next((name for name in features if features.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"dataset.features names {twice} twice")
        if not features:
            raise UserError(
                f"{shown}: has one column, {target}; give others that it is predicted from, separated by commas"
            )
        return target, features


def _read(
    rows: Iterable[Sequence[str]],
    head: Sequence[str],
    features: Sequence[str],
    target: str,
    shown: str,
    *,
    numbers: bool,
) -> Table:
    """Row by row: a list of a large table's cells takes ten times the memory of their numbers. Raises UserError.

    `numbers`: whether the target is one.
    """
    names = [*features, target] if numbers else [*features]
    places, at_target = [head.index(name) for name in names], head.index(target)
    read, labels, same = array("d"), list[str](), dict[str, str]()
    for number, row in enumerate(rows, start=1):
        found = number_files.floats([row[place] for place in places])
        if found is None:
            raise UserError(f"{shown}: row {number} {_fault(dict(zip(head, row, strict=True)), names, features)}")
        read.extend(found)
        if not numbers:
            labels.append(same.setdefault(row[at_target], row[at_target]))
    if not read:
        raise UserError(f"{shown}: holds no rows below the line of names")
    table = np.frombuffer(read).reshape(-1, len(names))
    _check_finite(table, names, shown)
    width = len(features)
    return Table(table[:, :width], table[:, width]) if numbers else Table(table, np.array(labels))


def _fault(cells: dict[str, str], names: Sequence[str], features: Sequence[str]) -> str:
    """What is wrong in a row, and what can be done about it."""
    name = next(one for one in names if not is_number(cells[one]))
    said = f"has {cut(cells[name])!r} for {name}, which is not a number"
    if cells[name].lower() in (*number_files.MISSING, "nan") or name not in features:
        said += "; leave such rows out"
    others = [one for one in features if is_number(cells[one])]
    if name in features and others:
        said += f"; without such columns: {cut(listed('dataset.features', others), 300)}"
    return said


def _of_counts(x: np.ndarray, features: Sequence[str]) -> list[str]:
    """Notes of the columns of `x` (N, columns) that may number the rows: they tell where in the file an example lay."""
    rises = [bool((np.diff(column) > 0).all() and (column % 1 == 0).all()) for column in x.T]  # one after another
    others = [name for name, one in zip(features, rises, strict=True) if not one]
    return [
        f"{name} rises by whole numbers from row to row; if it only numbers the rows, leave it out: "
        f"{cut(listed('dataset.features', others), 300)}"
        for name in features
        if others and name not in others
    ]


def _check_finite(table: np.ndarray, names: Sequence[str], shown: str) -> None:
    """Refuse NaN and what float32 cannot hold. Raises UserError, which names the row and the column."""
    if table.max() <= LARGEST and table.min() >= -LARGEST:  # a NaN anywhere makes both of them NaN
        return
    row, column = np.argwhere(~(np.abs(table) <= LARGEST))[0]
    raise UserError(
        f"{shown}: row {row + 1} has {table[row, column]:g} for {names[column]}, which is not a finite number of "
        "float32 (up to 3.4e38); leave such rows out"
    )
