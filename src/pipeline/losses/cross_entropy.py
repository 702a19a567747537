"""Sparse cross-entropy from logits, with label smoothing (Szegedy et al., CVPR 2016, section 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from pipeline.contracts import Loss
from pipeline.errors import UserError
from pipeline.metrics import classification as metrics
from pipeline.spec import spec
from pipeline.tasks import Targets, Task

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@spec
class CrossEntropy(Loss):
    """`label_smoothing` is the share of the target that is spread evenly over all classes.

    `class_weights`: what an example of each class counts; the loss is the mean of weight times cross-entropy over the
    examples, as Keras's `class_weight` has it, so that batches of any size add up.
    """

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    class_weights: tuple[Weight, ...] | None = None

    masks: ClassVar[bool] = True
    takes: ClassVar[Targets | None] = "classes"

    def __post_init__(self) -> None:
        if self.class_weights is not None and not any(self.class_weights):
            raise UserError(
                f"loss.class_weights={list(self.class_weights)}: all are 0, so nothing would be trained; give a weight "
                "above 0"
            )

    @property
    def asks_the_data(self) -> bool:
        """Whether there is a number for each class."""
        return self.class_weights is not None

    @property
    def nats(self) -> bool:
        """Whether neither smoothing nor weights are part of it."""
        return not self.label_smoothing and self.class_weights is None

    def check(self, task: Task) -> None:
        """Refuse another number of weights than there are classes."""
        classes = task.shapes.classes
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise UserError(f"loss.class_weights: {len(self.class_weights)} weights; the data have {classes} classes")

    def torch(self) -> Callable[[Any, Any], Any]:
        import torch
        from torch.nn import functional

        smoothing = self.label_smoothing
        if self.class_weights is None:

            def plain(logits: Any, labels: Any, counted: Any = None) -> Any:
                if counted is None:
                    return functional.cross_entropy(logits, labels, label_smoothing=smoothing)
                each = functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
                return (each * counted).mean()

            return plain

        class Weighted(torch.nn.Module):
            weights: torch.Tensor

            def __init__(self, weights: tuple[float, ...]) -> None:
                super().__init__()
                self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))

            def forward(self, logits: torch.Tensor, labels: torch.Tensor, counted: Any = None) -> torch.Tensor:
                each = functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
                each = self.weights.to(each.dtype)[labels] * each
                return (each if counted is None else each * counted).mean()

        return Weighted(self.class_weights)

    def keras(self) -> Callable[[Any, Any], Any]:
        from keras import ops

        smoothing, weights = self.label_smoothing, self.class_weights

        def loss(logits: Any, labels: Any, counted: Any = None) -> Any:
            each = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            if smoothing:
                every_class = -ops.mean(ops.log_softmax(logits, axis=-1), axis=-1)
                each = (1 - smoothing) * each + smoothing * every_class
            if weights is not None:
                each = ops.take(ops.convert_to_tensor(weights, logits.dtype), labels) * each
            if counted is not None:
                each = each * ops.cast(counted, each.dtype)
            return ops.mean(each)

        return loss

    def numpy(self, logits: np.ndarray, labels: np.ndarray) -> float:
        if self.class_weights is not None:
            log = metrics.log_softmax(logits)
            each = (1 - self.label_smoothing) * -log[np.arange(len(labels)), labels.astype(np.int64)]
            each -= self.label_smoothing * log.mean(axis=1)
            return float((np.asarray(self.class_weights)[labels.astype(np.int64)] * each).mean())
        true_class = metrics.cross_entropy(logits, labels)
        if not self.label_smoothing:
            return true_class
        every_class = float(-metrics.log_softmax(logits).mean())
        return (1 - self.label_smoothing) * true_class + self.label_smoothing * every_class
