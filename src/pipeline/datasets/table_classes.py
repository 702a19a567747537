"""The classes of a column of a table, whose cells are texts: words, or whole numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise

import numpy as np

from pipeline.datasets.number_files import MISSING
from pipeline.errors import UserError, cut
from pipeline.spec import is_number

MANY = 100  # classes that are numbers: they may well be what is measured


def class_names(labels: np.ndarray, target: str, shown: str) -> list[str]:
    """The different labels (N,) in order: of numbers, if all are. Raises UserError."""
    names = [str(name) for name in np.unique(labels)]
    missing = next((name for name in names if name.lower() in ("", "nan")), None)
    if missing is not None:
        row = int(np.argmax(labels == missing)) + 1
        has = f"has {missing} for {target}" if missing else f"has no {target}"
        raise UserError(f"{shown}: row {row} {has}, the target; leave the row out")
    broken = next((name for name in names if len(name.splitlines()) > 1), None)
    if broken is not None:
        raise UserError(f"{shown}: the target {target} has {cut(broken)!r}, of several lines; is a quote not closed?")
    return _in_order(names, target, shown) if all(map(is_number, names)) else names


def _in_order(names: Sequence[str], target: str, shown: str) -> list[str]:
    """Whole numbers in their order. Raises UserError for other numbers, and for one that is written in two ways."""
    real = next((name for name in names if float(name) % 1), None)
    if real is not None:
        raise UserError(
            f"{shown}: the target {target} has {real}, a number; for a regression stage=train "
            "dataset.targets=numbers loss=squared_error"
        )
    ordered = sorted(names, key=Decimal)  # exact: of two large numbers float makes one
    same = next((pair for pair in pairwise(ordered) if Decimal(pair[0]) == Decimal(pair[1])), None)
    if same is not None:
        raise UserError(
            f"{shown}: the target {target} has {same[0]} and {same[1]}, which would be two classes; write a number in "
            "one way"
        )
    return ordered


def notes(classes: Sequence[str], target: str) -> list[str]:
    """What of the classes may not be meant as such."""
    found = [
        f"a class of {target} is called {name}; if it stands for a label that is missing, leave its rows out"
        for name in classes
        if name.lower() in MISSING
    ]
    written = Counter(name.casefold() for name in classes)
    alike = [name for name in classes if written[name.casefold()] > 1]
    if alike:
        found.append(f"{target} has the classes {cut(', '.join(alike))}; if they are one, write it in one way")
    if len(classes) > MANY and all(map(is_number, classes)):
        found.append(
            f"{target} has {len(classes):,} different whole numbers, each of them a class; for a regression "
            "stage=train dataset.targets=numbers loss=squared_error"
        )
    return found
