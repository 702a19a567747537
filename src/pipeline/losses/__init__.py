"""Losses: one file each, a spec with its torch and Keras functions side by side.

Each function takes logits (N, classes) and labels (N,) and returns the mean over the batch. Logits narrower than
float32 are widened first: a sum over a batch in half precision would lose the digits that the comparison is about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Loss(Protocol):
    """What a loss's spec offers."""

    def torch(self) -> Callable[[Any, Any], Any]:
        """(logits, labels) -> scalar tensor."""
        ...

    def keras(self) -> Callable[[Any, Any], Any]:
        """(logits, labels) -> scalar tensor of the Keras backend."""
        ...
