"""Figures of a training: classes of any number and name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.report.figures import confusion_matrix, image_sheet


@pytest.mark.parametrize(("classes", "widest"), [(10, 1100), (30, 2300), (31, 2300), (400, 2300)])
def test_a_confusion_matrix_of_many_classes_stays_a_figure(classes: int, widest: int, tmp_path: Path) -> None:
    """Of 200 classes it took 5.5 GB and half a minute, which ended runs whose training was over."""
    counts = np.random.default_rng(0).integers(0, 9, (classes, classes))
    confusion_matrix(tmp_path / "matrix.png", counts, [f"class {number}" for number in range(classes)], "many")
    with Image.open(tmp_path / "matrix.png") as image:
        assert max(image.size) < widest


def test_names_of_classes_are_no_formulas(tmp_path: Path) -> None:
    """Matplotlib takes what stands between two dollar signs for one, and refuses an empty one."""
    names = ["$", "$$", "US$_to_A$"]
    confusion_matrix(tmp_path / "matrix.png", np.eye(3, dtype=int), names, "prices")
    image_sheet(tmp_path / "sheet.png", np.zeros((2, 4, 4, 1)), np.eye(3)[:2], names, np.array([0, 1]), "prices")
