"""A Keras layer on JAX whose backward pass computes it anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from keras.src.backend.common.variables import AutocastScope


def recomputed(layer: Any, function: Callable[[Any, Any], Any], x: Any, seeds: Any) -> Any:
    """`function(x, seeds)`, which may read the layer's weights, with x, seeds and weights alone kept.

    Not by jax.checkpoint: on a CPU, XLA may compute all blocks anew before the backward pass, and memory is then what
    it was. Here x is made to depend on the incoming gradient, as tf.recompute_grad does.
    """
    weights = layer.weights
    with AutocastScope(None):
        values = [variable.value for variable in weights]

    def plain(values: Any, x: Any, seeds: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
            return function(x, seeds)

    def backward(kept: Any, gradient: Any) -> Any:
        values, x, seeds = kept
        one = gradient.reshape(-1)[0]
        x = x + jnp.where(one == one, 0, jnp.nan).astype(x.dtype)  # unlike a number, not known to be 0
        _, pulled = jax.vjp(lambda values, x: plain(values, x, seeds), values, x)
        return *pulled(gradient), None

    keeping = jax.custom_vjp(plain)
    keeping.defvjp(lambda *kept: (plain(*kept), kept), backward)
    return keeping(values, x, seeds)
