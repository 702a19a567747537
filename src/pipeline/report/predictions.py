"""What a classifier made of each test image, as a table for other programs (DVC's confusion plot counts its rows)."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def write(path: Path, logits: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> None:
    """A row for each image, in the order of the test set: its class and the predicted one, by name."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("actual", "predicted"))
        rows.writerows((classes[true], classes[best]) for true, best in zip(labels, logits.argmax(axis=1), strict=True))
