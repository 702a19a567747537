"""Losses: one file each, a spec with its torch, Keras and NumPy functions side by side.

Each function takes logits (N, classes) and labels (N,) and returns the mean over the batch. Logits narrower than
float32 are widened first: a sum over a batch in half precision would lose the digits that the comparison is about. The
NumPy function measures the test set, in float64, so that a saved model has one loss wherever it is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class Loss(Protocol):
    """What a loss's spec offers."""

    def torch(self) -> Callable[[Any, Any], Any]:
        """(logits, labels) -> scalar tensor."""
        ...

    def keras(self) -> Callable[[Any, Any], Any]:
        """(logits, labels) -> scalar tensor of the Keras backend."""
        ...

    def numpy(self, logits: np.ndarray, labels: np.ndarray) -> float:
        """The same loss of logits that are at hand, in float64."""
        ...
