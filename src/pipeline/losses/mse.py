"""Mean squared error between class probabilities and the one-hot label (the Brier score over the number of classes)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from pipeline.contracts import Loss
from pipeline.metrics import classification as metrics
from pipeline.spec import spec
from pipeline.tasks import Targets


@spec
class MeanSquaredError(Loss):
    """No settings."""

    takes: ClassVar[Targets | None] = "classes"

    def torch(self) -> Callable[[Any, Any], Any]:
        from torch.nn import functional

        def loss(logits: Any, labels: Any) -> Any:
            target = functional.one_hot(labels, logits.shape[-1]).to(logits.dtype)
            return functional.mse_loss(logits.softmax(-1), target)

        return loss

    def keras(self) -> Callable[[Any, Any], Any]:
        from keras import ops

        def loss(logits: Any, labels: Any) -> Any:
            target = ops.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
            return ops.mean(ops.square(ops.softmax(logits, axis=-1) - target))

        return loss

    def numpy(self, logits: np.ndarray, labels: np.ndarray) -> float:
        return metrics.brier(logits, labels) / logits.shape[1]
