"""Stochastic gradient descent, with momentum (Polyak) or Nesterov's variant (Sutskever et al., ICML 2013)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeline.contracts import Optimizer
from pipeline.optimizers import Decay, Decayed, LearningRate, WeightDecay
from pipeline.spec import spec


@spec
class Sgd(Optimizer):
    """`weight_decay` adds that share of each weight to its gradient."""

    learning_rate: LearningRate = 0.01
    momentum: Decay = 0.0
    nesterov: bool = False
    weight_decay: WeightDecay = 0.0
    decay: Decayed = "all"

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov=true: needs optimizer.momentum above 0, such as 0.9")

    def slots(self) -> int:
        return 1 if self.momentum else 0

    def torch(self, parameters: Iterable[Any]) -> Any:
        import torch

        return torch.optim.SGD(
            parameters,
            lr=self.learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )

    def keras(self) -> Any:
        from pipeline.optimizers import keras_updates

        return keras_updates.Sgd(
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            l2=self.weight_decay,
        )
