"""Sparse cross-entropy from logits, with label smoothing (Szegedy et al., CVPR 2016, section 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from pipeline.contracts import Loss
from pipeline.metrics import classification as metrics
from pipeline.spec import spec


@spec
class CrossEntropy(Loss):
    """`label_smoothing` is the share of the target that is spread evenly over all classes."""

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def torch(self) -> Callable[[Any, Any], Any]:
        from torch.nn import functional

        return lambda logits, labels: functional.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)

    def keras(self) -> Callable[[Any, Any], Any]:
        from keras import ops

        smoothing = self.label_smoothing

        def loss(logits: Any, labels: Any) -> Any:
            true_class = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            if not smoothing:
                return ops.mean(true_class)
            every_class = -ops.mean(ops.log_softmax(logits, axis=-1), axis=-1)
            return ops.mean((1 - smoothing) * true_class + smoothing * every_class)

        return loss

    def numpy(self, logits: np.ndarray, labels: np.ndarray) -> float:
        true_class = metrics.cross_entropy(logits, labels)
        if not self.label_smoothing:
            return true_class
        every_class = float(-metrics.log_softmax(logits).mean())
        return (1 - self.label_smoothing) * true_class + self.label_smoothing * every_class
