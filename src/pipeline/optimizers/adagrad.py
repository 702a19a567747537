"""Adagrad (Duchi, Hazan & Singer, JMLR 2011)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from pipeline.contracts import Optimizer
from pipeline.optimizers import Epsilon, LearningRate
from pipeline.spec import spec


@spec
class Adagrad(Optimizer):
    """`initial_accumulator` is where each sum of squared gradients starts; `epsilon` is added to its root."""

    learning_rate: LearningRate = 0.01
    initial_accumulator: Annotated[float, Field(ge=0)] = 0.1
    epsilon: Epsilon = 1e-7

    @property
    def divides_by_squares(self) -> bool:  # type: ignore[override]  # it depends on a setting
        """Unless their sum starts above 0."""
        return self.initial_accumulator == 0

    def slots(self) -> int:
        return 1

    def torch(self, parameters: Iterable[Any]) -> Any:
        import torch

        return torch.optim.Adagrad(
            parameters,
            lr=self.learning_rate,
            initial_accumulator_value=self.initial_accumulator,
            eps=self.epsilon,
        )

    def keras(self) -> Any:
        from pipeline.optimizers import keras_updates

        return keras_updates.Adagrad(
            learning_rate=self.learning_rate,
            initial_accumulator_value=self.initial_accumulator,
            epsilon=self.epsilon,
        )
