"""Adadelta (Zeiler, arXiv:1212.5701, algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.contracts import Optimizer
from pipeline.optimizers import Decay, Epsilon, LearningRate
from pipeline.spec import spec


@spec
class Adadelta(Optimizer):
    """`learning_rate` scales the step; 1.0 is Zeiler's method (2012)."""

    learning_rate: LearningRate = 1.0
    rho: Decay = 0.9
    epsilon: Epsilon = 1e-6

    def slots(self) -> int:
        return 2

    def torch(self, parameters: Iterable[Any]) -> Any:
        import torch

        return torch.optim.Adadelta(parameters, lr=self.learning_rate, rho=self.rho, eps=self.epsilon)

    def keras(self) -> Any:
        import keras

        return keras.optimizers.Adadelta(learning_rate=self.learning_rate, rho=self.rho, epsilon=self.epsilon)
