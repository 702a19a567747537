"""Multi-class hinge loss: how far any wrong class comes within `margin` of the true one (Crammer & Singer, 2001)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from pipeline.contracts import Loss
from pipeline.spec import spec
from pipeline.tasks import Targets


@spec
class Hinge(Loss):
    """max(0, margin + highest wrong logit - true logit), averaged over the batch."""

    takes: ClassVar[Targets | None] = "classes"
    margins: ClassVar[bool] = True

    margin: Annotated[float, Field(gt=0)] = 1.0

    def torch(self) -> Callable[[Any, Any], Any]:
        from torch.nn import functional

        def loss(logits: Any, labels: Any) -> Any:
            true = functional.one_hot(labels, logits.shape[-1]).bool()
            wrong = logits.masked_fill(true, float("-inf")).amax(-1)
            right = logits.gather(-1, labels[:, None])[:, 0]
            return functional.relu(self.margin + wrong - right).mean()

        return loss

    def keras(self) -> Callable[[Any, Any], Any]:
        from keras import ops

        def loss(logits: Any, labels: Any) -> Any:
            true = ops.one_hot(labels, logits.shape[-1], dtype="bool")
            wrong = ops.max(ops.where(true, float("-inf"), logits), axis=-1)
            right = ops.sum(ops.where(true, logits, ops.zeros_like(logits)), axis=-1)
            return ops.mean(ops.relu(self.margin + wrong - right))

        return loss

    def numpy(self, logits: np.ndarray, labels: np.ndarray) -> float:
        wide = logits.astype(np.float64)
        true = np.arange(wide.shape[1]) == labels[:, None]
        wrong = np.where(true, -np.inf, wide).max(axis=1)
        return float(np.maximum(0, self.margin + wrong - wide[true]).mean())
