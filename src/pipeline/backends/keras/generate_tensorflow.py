"""A function of a Keras model's layers as one program of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from pipeline.backends.keras import autograph

if TYPE_CHECKING:
    from pipeline.experiment import Experiment


class Compiled:
    """`function(tokens, where, cache if any)` to logits in floatx and the cache."""

    def __init__(self, model: Any, function: Callable[..., tuple[Any, Any]], experiment: Experiment) -> None:
        @tf.function(autograph=autograph.is_needed(experiment.data_model))
        def run(tokens: Any, where: Any, *cache: Any) -> tuple[Any, Any]:
            logits, kept = function(tokens, where, *cache)
            return tf.cast(logits, keras.config.floatx()), kept

        self.run = run

    def read(self) -> None:
        """Nothing to do: the program reads the model's variables."""

    def __call__(self, tokens: Any, where: Any, *cache: Any) -> tuple[Any, Any]:
        found: tuple[Any, Any] = self.run(tf.constant(tokens), tf.constant(where), *cache)
        return found
