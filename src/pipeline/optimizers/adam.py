"""Adam (Kingma & Ba, ICLR 2015, algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from pipeline.contracts import Optimizer
from pipeline.optimizers import Decay, Epsilon, LearningRate
from pipeline.spec import spec


@spec
class Adam(Optimizer):
    """`epsilon` is added to the bias-corrected root, as in algorithm 1; 1e-7 is Keras's default, torch's is 1e-8."""

    divides_by_squares: ClassVar[bool] = True

    learning_rate: LearningRate = 1e-3
    beta_1: Decay = 0.9
    beta_2: Decay = 0.999
    epsilon: Epsilon = 1e-7

    def slots(self) -> int:
        return 2

    def torch(self, parameters: Iterable[Any]) -> Any:
        import torch

        return torch.optim.Adam(
            parameters, lr=self.learning_rate, betas=(self.beta_1, self.beta_2), eps=self.epsilon, fused=True
        )

    def keras(self) -> Any:
        from pipeline.optimizers import keras_updates

        return keras_updates.Adam(
            learning_rate=self.learning_rate, beta_1=self.beta_1, beta_2=self.beta_2, epsilon=self.epsilon
        )
