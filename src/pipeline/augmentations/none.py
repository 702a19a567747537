"""The images as they are."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline.augmentations.draws import Draws
from pipeline.contracts import Augmentation
from pipeline.spec import spec


@spec
class Off(Augmentation):
    """Nothing is changed, and nothing is computed for it."""

    active: ClassVar[bool] = False

    def augmented(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        return x
