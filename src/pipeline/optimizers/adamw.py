"""Adam with decoupled weight decay (Loshchilov & Hutter, ICLR 2019, algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from pipeline.contracts import Optimizer
from pipeline.optimizers import Decay, Decayed, Epsilon, LearningRate, WeightDecay
from pipeline.spec import spec


@spec
class AdamW(Optimizer):
    """Before each step every weight shrinks by `learning_rate * weight_decay` of itself."""

    divides_by_squares: ClassVar[bool] = True

    learning_rate: LearningRate = 1e-3
    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: Epsilon = 1e-7
    weight_decay: WeightDecay = 0.01
    decay: Decayed = "all"

    def slots(self) -> int:
        return 2

    def torch(self, parameters: Iterable[Any]) -> Any:
        import torch

        return torch.optim.AdamW(
            parameters,
            lr=self.learning_rate,
            betas=(self.beta_1, self.beta_2),
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            fused=True,
        )

    def keras(self) -> Any:
        from pipeline.optimizers import keras_updates

        return keras_updates.Adam(
            learning_rate=self.learning_rate,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
        )
