"""Optimizers: one file each, a spec with its torch and Keras builders side by side, the same update in both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Protocol

from pydantic import Field

LearningRate = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Epsilon = Annotated[float, Field(gt=0, lt=1)]
WeightDecay = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class Optimizer(Protocol):
    """What an optimizer's spec offers. `slots`: numbers kept per weight beside the weight and its gradient."""

    def slots(self) -> int:
        """For the estimate of the memory that training needs."""
        ...

    def torch(self, parameters: Iterable[Any]) -> Any:
        """A torch.optim.Optimizer over `parameters`."""
        ...

    def keras(self) -> Any:
        """A keras.optimizers.Optimizer."""
        ...
