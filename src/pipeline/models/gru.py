"""A recurrent network for tokens, of gated recurrent units (row E5).

Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine translation", 2014,
equations 5 to 8; the reset gate acts behind the recurrent product, as in cuDNN, torch and Keras.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from pipeline.contracts import Model
from pipeline.models import Shapes
from pipeline.models.weights import as_small_as_embeddings
from pipeline.spec import spec


@spec
class Gru(Model):
    """`layers` of `width` units, one behind the other. What it knows of the past is the state of its units."""

    shared_start: ClassVar[bool] = True
    takes: ClassVar[Literal["tokens"]] = "tokens"

    layers: PositiveInt = 1
    width: PositiveInt = 128

    def first_value(self, name: str, drawn: np.ndarray) -> np.ndarray:
        if name == "logits.kernel":  # small, as the embeddings: the loss of a fresh model is then log V
            return as_small_as_embeddings(drawn)
        return drawn

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        from pipeline.models.torch_sequences import GruLayer

        _, vocabulary = shapes.sequence
        net = nn.Sequential()
        net.add_module("tokens", nn.Embedding(vocabulary, self.width))
        for number in range(self.layers):
            net.add_module(f"units_{number}", GruLayer(self.width))
        net.add_module("logits", nn.Linear(self.width, vocabulary, bias=False))
        return net

    def keras(self, shapes: Shapes) -> Any:
        import keras
        from keras import layers

        length, vocabulary = shapes.sequence
        stack = [keras.Input((length,), dtype="int32"), layers.Embedding(vocabulary, self.width, name="tokens")]
        stack += [
            layers.GRU(self.width, return_sequences=True, name=f"units_{number}") for number in range(self.layers)
        ]
        return keras.Sequential([*stack, layers.Dense(vocabulary, use_bias=False, name="logits")], name="gru")
