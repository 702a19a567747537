"""Muon (Jordan et al., 2024): the momentum of a matrix, made orthogonal, is its update; all else is Adam's.

A matrix changes by about as much in every direction, however unequal its gradient's singular values are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from pipeline.contracts import Optimizer
from pipeline.models.patterns import matching
from pipeline.models.weights import kind_of
from pipeline.optimizers import Decay, Epsilon, LearningRate, WeightDecay
from pipeline.optimizers.orthogonal import ADAM, MATRIX, Matrices
from pipeline.spec import spec

MATRICES = ("kernel", "adapter_a", "adapter_b")  # by the last part of a weight's name


@spec
class Muon(Optimizer):
    """`learning_rate`, `momentum`, `weight_decay`: of matrices, which shrink by rate x decay of themselves first.

    Matrices are the kernels of dense layers and of their adapters, but for the one that makes the model's outputs and
    those that a pattern of `by_adam` names. `iterations`: of Newton and Schulz. `adam_rate`, `beta_1`, `beta_2`,
    `epsilon`: of all other weights, which do not decay. A schedule scales both rates.
    """

    divides_by_squares: ClassVar[bool] = True
    several: ClassVar[bool] = True

    learning_rate: LearningRate = 0.02
    momentum: Decay = 0.95
    nesterov: bool = True
    iterations: Annotated[PositiveInt, Field(le=100)] = 5
    weight_decay: WeightDecay = 0.0
    by_adam: tuple[str, ...] = ()
    adam_rate: LearningRate = 1e-3
    beta_1: Decay = 0.9
    beta_2: Decay = 0.95
    epsilon: Epsilon = 1e-7

    @property
    def asks_the_model(self) -> bool:
        """Whether its patterns name weights of this model."""
        return bool(self.by_adam)

    def slots(self) -> int:
        return 2

    def kinds(self, shapes: Mapping[str, tuple[int, ...]], outputs: int | None) -> dict[str, str]:
        kernels = [name for name, shape in shapes.items() if kind_of(name) in MATRICES and len(shape) == 2]
        if kernels and shapes[kernels[-1]][1] == outputs:
            del kernels[-1]
        by_adam = matching("optimizer.by_adam", self.by_adam, shapes)
        matrices = {name for name in kernels if name not in by_adam}
        return {name: MATRIX if name in matrices else ADAM for name in shapes}

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
