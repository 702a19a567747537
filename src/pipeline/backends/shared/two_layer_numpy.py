"""The two-layer net in NumPy: the reference, timed like the others."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline.backends.shared.arrays_numpy import Arrays
from pipeline.backends.shared.two_layer import Form, Way, by_hand


class ByHand(Form):
    """The chain rule, written out."""

    name: ClassVar[str] = "numpy"
    how: ClassVar[str] = "gradients by hand"

    def start_from(self, w1: np.ndarray, w2: np.ndarray) -> None:
        self.w1, self.w2 = w1, w2

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        return self.w1, self.w2

    def step(self) -> None:
        self.last, self.w1, self.w2 = by_hand(self.x, self.y, self.w1, self.w2, self.rate)


FORMS: tuple[type[Form], ...] = (ByHand,)
WAYS: tuple[type[Way], ...] = ()


def arrays(place: str) -> Arrays:
    """On the CPU, whatever is asked for."""
    return Arrays()
