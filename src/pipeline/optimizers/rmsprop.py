"""RMSprop (Tieleman & Hinton, lecture 6.5 of "Neural networks for machine learning", 2012)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from pipeline.contracts import Optimizer
from pipeline.optimizers import Decay, Epsilon, LearningRate
from pipeline.spec import spec


@spec
class RmsProp(Optimizer):
    """`rho` is the decay of the running mean of squared gradients; `epsilon` is added to its root."""

    divides_by_squares: ClassVar[bool] = True

    learning_rate: LearningRate = 1e-3
    rho: Decay = 0.9
    momentum: Decay = 0.0
    epsilon: Epsilon = 1e-7

    def slots(self) -> int:
        return 2 if self.momentum else 1

    def torch(self, parameters: Iterable[Any]) -> Any:
        import torch

        return torch.optim.RMSprop(
            parameters, lr=self.learning_rate, alpha=self.rho, momentum=self.momentum, eps=self.epsilon
        )

    def keras(self) -> Any:
        from pipeline.optimizers import keras_updates

        return keras_updates.RmsProp(
            learning_rate=self.learning_rate, rho=self.rho, momentum=self.momentum, epsilon=self.epsilon
        )
