"""A function of a Keras model's layers as one program of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def compiled(model: Any, function: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    """`function(tokens, where, cache if any)` to logits in floatx and the cache."""

    @tf.function
    def run(tokens: Any, where: Any, *cache: Any) -> tuple[Any, Any]:
        logits, kept = function(tokens, where, *cache)
        return tf.cast(logits, keras.config.floatx()), kept

    return lambda tokens, where, *cache: run(tf.constant(tokens), tf.constant(where), *cache)
