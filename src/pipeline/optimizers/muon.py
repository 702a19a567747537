"""Muon (Jordan et al., 2024): the momentum of a matrix, made orthogonal, is its update; all else is Adam's.

A matrix changes by about as much in every direction, however unequal its gradient's singular values are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from pipeline.contracts import Optimizer
from pipeline.models.patterns import matches
from pipeline.optimizers import Decay, Epsilon, LearningRate, WeightDecay
from pipeline.optimizers.orthogonal import ADAM, MATRIX, Matrices
from pipeline.spec import spec


@spec
class Muon(Optimizer):
    """`learning_rate`, `momentum`, `weight_decay`: of matrices, which shrink by rate x decay of themselves first.

    `iterations`: of Newton and Schulz. `adam`: the rate, betas and epsilon of the other weights, which do not decay;
    `by_adam`: patterns of matrices that are among those. A schedule scales both rates.
    """

    several: ClassVar[bool] = True

    learning_rate: LearningRate = 0.02
    momentum: Decay = 0.95
    nesterov: bool = True
    iterations: Annotated[PositiveInt, Field(le=100)] = 5
    weight_decay: WeightDecay = 0.0
    by_adam: tuple[str, ...] = ("logits", "*embeddings")
    adam_rate: LearningRate = 1e-3
    beta_1: Decay = 0.9
    beta_2: Decay = 0.95
    epsilon: Epsilon = 1e-8

    def slots(self) -> int:
        return 2

    def kind(self, name: str, shape: tuple[int, ...]) -> str:
        """Matrices are the kernels of dense layers; embeddings, convolutions, biases and norms are not."""
        matrix = len(shape) == 2 and not any(matches(name, pattern) for pattern in self.by_adam)
        return MATRIX if matrix else ADAM

    def torch(self, parameters: Iterable[Any]) -> Any:
        from pipeline.optimizers import torch_updates

        return torch_updates.Muon(
            list(parameters),
            self._matrices(),
            self.adam_rate / self.learning_rate,
            lr=self.learning_rate,
            betas=(self.beta_1, self.beta_2),
            eps=self.epsilon,
        )

    def keras(self) -> Any:
        from pipeline.optimizers import keras_updates

        return keras_updates.Muon(
            self._matrices(),
            self.adam_rate / self.learning_rate,
            learning_rate=self.learning_rate,
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
        )

    def _matrices(self) -> Matrices:
        return Matrices(self.momentum, self.nesterov, self.iterations, self.weight_decay)
