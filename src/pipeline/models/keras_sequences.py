"""Layers over tokens, and causal convolutions, in Keras. Imported only by a model's Keras builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers, ops

from pipeline.models.keras_layers import computed_once, gelu


def token_stack(name: str, length: int, vocabulary: int, width: int, stacked: Sequence[Any]) -> Any:
    """Tokens (B, T) to logits (B, T, V): embeddings, layers from (B, T, width) to the same, and a kernel."""
    tokens = layers.Embedding(vocabulary, width, name="tokens")
    logits = layers.Dense(vocabulary, use_bias=False, name="logits")
    return keras.Sequential([keras.Input((length,), dtype="int32"), tokens, *stacked, logits], name=name)


@keras.saving.register_keras_serializable("pipeline")
class Convolution(layers.Layer):
    """(B, T, C) to (B, T, C): x + GELU(a causal convolution of x).

    As one matrix product over the positions that it sees: on a CPU, XLA has no fast gradient of a convolution.
    """

    def __init__(self, size: int, apart: int, **more: Any) -> None:
        super().__init__(**more)
        self.size, self.apart = size, apart

    def build(self, shape: Any) -> None:
        """Make kernel (size, C, C) and bias."""
        channels = shape[-1]
        self.kernel = self.add_weight(name="kernel", shape=(self.size, channels, channels))
        self.bias = self.add_weight(name="bias", shape=(channels,), initializer="zeros")
        self.built = True

    def call(self, x_BTC: Any) -> Any:
        """Of a batch."""
        length, channels = x_BTC.shape[1:]
        padded = ops.pad(x_BTC, [(0, 0), ((self.size - 1) * self.apart, 0), (0, 0)])
        seen = [padded[:, first : first + length] for first in range(0, self.size * self.apart, self.apart)]
        kernel = ops.reshape(ops.cast(self.kernel, x_BTC.dtype), (-1, channels))
        found = gelu(ops.matmul(ops.concatenate(seen, axis=-1), kernel) + ops.cast(self.bias, x_BTC.dtype))
        return computed_once(x_BTC + found)

    def get_config(self) -> dict[str, Any]:
        """What its builder takes."""
        return {**super().get_config(), "size": self.size, "apart": self.apart}
