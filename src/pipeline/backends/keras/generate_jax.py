"""A function of a Keras model's layers as one program of JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import keras


def compiled(model: Any, function: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """`function(tokens, where, cache if any)` to logits in floatx and the cache, which takes the old one's memory."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    values = [variable.value for variable in variables]

    @partial(jax.jit, donate_argnums=3)
    def run(values: Any, tokens: Any, where: Any, cache: Any) -> tuple[Any, Any]:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            logits, cache = function(tokens, where, *cache)
            return logits.astype(keras.config.floatx()), cache

    return lambda tokens, where, *cache: run(values, tokens, where, cache)
