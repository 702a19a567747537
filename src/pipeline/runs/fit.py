"""What a backend returns: the trained model, how each epoch went, and what was seen in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pipeline.runs.loss_scale import LossScale
from pipeline.runs.result import Metric, count, rate
from pipeline.models.weights import Weights

Predict = Callable[[np.ndarray], np.ndarray]


NOT_SEEN = "set, not seen"
ON_CPU = "no processor has TF32"


@dataclass
class Observation:
    """What was seen in a training step while it ran.

    `matmuls` counts matrix products and convolutions, forward and backward, by their operands' dtype, and
    `product_devices` by where they ran; `devices` and `operations` count every operation, by device and by (name,
    device, dtype). `compiled` is the count of matrix products after the compiler's passes, where a compiler stands
    between (XLA). `how` names the way of looking.

    `tf32`: whether float32 products ran in TF32, seen as `tf32_by` says; None where it was set and not seen, for the
    reason in `tf32_by`.
    """

    how: str
    matmuls: Counter[str] = field(default_factory=Counter)
    devices: Counter[str] = field(default_factory=Counter)
    product_devices: Counter[str] = field(default_factory=Counter)
    operations: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    compiled: Counter[str] | None = None
    tf32: bool | None = None
    tf32_by: str = NOT_SEEN


@dataclass(frozen=True)
class Epoch:
    """One epoch's figures. `seconds` is training alone, without validation."""

    number: int
    seconds: float
    images: int
    train_loss: float
    train_accuracy: float
    validation_loss: float | None = None
    validation_accuracy: float | None = None

    @property
    def images_per_s(self) -> float:
        return self.images / self.seconds

    def metrics(self, unit: str) -> tuple[Metric, ...]:
        """As the journal keeps them. `unit`: what a rate counts ("images")."""
        found = (
            count("epoch/number", self.number),
            Metric("epoch/train_loss", self.train_loss, direction="min"),
            Metric("epoch/train_accuracy", self.train_accuracy, direction="max"),
            rate("epoch/images_per_s", self.images_per_s, unit),
        )
        if self.validation_loss is None or self.validation_accuracy is None:
            return found
        return (
            *found,
            Metric("validation/loss", self.validation_loss, direction="min"),
            Metric("validation/accuracy", self.validation_accuracy, direction="max"),
        )


@dataclass(frozen=True)
class Fit:
    """A trained model: its weights, how each epoch went and what was observed."""

    weights: Weights
    epochs: tuple[Epoch, ...]
    observed: Observation
    parameters: int
    peak_memory: dict[str, int]
    loss_scale: LossScale | None = None  # of a training in mixed float16
    cpu_threads: int | None = None  # of one operation; None: the framework's own choice
    files: dict[str, str] = field(default_factory=dict)  # name -> text, for example Keras's model as JSON
