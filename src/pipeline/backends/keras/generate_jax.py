"""A function of a Keras model's layers as one program of JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import keras

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


class Compiled:
    """`function(tokens, where, cache if any)` to logits in floatx and the cache, which takes the old one's memory."""

    def __init__(self, model: Any, function: Callable[..., tuple[Any, Any]], experiment: Experiment) -> None:
        self.variables = variables = [*model.trainable_variables, *model.non_trainable_variables]
        self.read()

        @partial(jax.jit, donate_argnums=3)
        def run(values: Any, tokens: Any, where: Any, cache: Any) -> tuple[Any, Any]:
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                logits, cache = function(tokens, where, *cache)
                return logits.astype(keras.config.floatx()), cache

        self.run = run

    def read(self) -> None:
        """Take the weights that the model's variables have now."""
        self.values = [variable.value for variable in self.variables]

    def __call__(self, tokens: Any, where: Any, *cache: Any) -> tuple[Any, Any]:
        found: tuple[Any, Any] = self.run(self.values, tokens, where, cache)
        return found
