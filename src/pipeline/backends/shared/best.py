"""The best validation so far: what `training.weights=best` keeps and `training.patience` counts from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.errors import RunError
from pipeline.runs.weights import Weights
from pipeline.tasks import Task

if TYPE_CHECKING:
    from pipeline.experiment.training import Training

Snapshot = Callable[[], Weights]


class Best:
    """One per fit. `step` and `epoch`: where the best validation was; `weights`: those it was of, where asked for."""

    def __init__(self, training: Training, task: Task) -> None:
        self.patience, self.keeps = training.patience, training.weights == "best"
        self.monitor = training.monitor
        self.of_loss = self.monitor == "validation/loss"
        self.sign = 1 if self.of_loss or task.better == "min" else -1
        self.value: float | None = None
        self.step = self.epoch = self.since = 0
        self.validation: tuple[float, float] | None = None  # loss and score, of that step
        self.weights: Weights | None = None

    def take(self, validation: tuple[float, float], step: int, epoch: int, weights: Snapshot) -> None:
        """A validation's loss and score; `weights` makes a copy of what was validated. Raises RunError for a NaN."""
        value = validation[0 if self.of_loss else 1]
        if math.isnan(value):  # every comparison with it is false, so that it would count as better
            raise RunError(f"{self.monitor} became nan at step {step:,}; training.monitor needs a number")
        if self.value is not None and self.sign * value >= self.sign * self.value:
            self.since += 1
            return
        self.value, self.step, self.epoch, self.since = value, step, epoch, 0
        self.validation = validation
        if self.keeps:
            self.weights = weights()

    @property
    def stops(self) -> bool:
        """Whether too many validations have passed without a better one."""
        return self.patience is not None and self.since >= self.patience
