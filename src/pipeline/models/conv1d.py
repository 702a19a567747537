"""A stack of causal convolutions over tokens (row E5).

Bai et al., "An empirical evaluation of generic convolutional and recurrent networks for sequence modeling", 2018,
section 3; without their normalisation, and plain unless `dilation` is set.
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
class Conv1d(Model):
    """`layers` of `width` channels, each h + GELU(convolution of h), which sees `kernel_size` positions, its own last.

    `dilation`: these positions lie one apart in the first layer, and in each further one so many times as far apart
    (1: a plain stack; 2: what is seen doubles with each layer).
    """

    shared_start: ClassVar[bool] = True
    takes: ClassVar[Literal["tokens"]] = "tokens"

    layers: PositiveInt = 4
    width: PositiveInt = 64
    kernel_size: PositiveInt = 9
    dilation: PositiveInt = 1

    @property
    def apart(self) -> list[int]:
        """Of each layer, how far the positions that it sees lie apart."""
        return [self.dilation**number for number in range(self.layers)]

    @property
    def receptive_field(self) -> int:
        """How many positions, its own among them, decide what comes out at a position."""
        return 1 + (self.kernel_size - 1) * sum(self.apart)

    def first_value(self, name: str, drawn: np.ndarray) -> np.ndarray:
        if name == "logits.kernel":  # small, as the embeddings: the loss of a fresh model is then log V
            return as_small_as_embeddings(drawn)
        return drawn

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        from pipeline.models.torch_sequences import Convolution

        _, vocabulary = shapes.sequence
        net = nn.Sequential()
        net.add_module("tokens", nn.Embedding(vocabulary, self.width))
        for number, apart in enumerate(self.apart):
            net.add_module(f"convolution_{number}", Convolution(self.width, self.kernel_size, apart))
        net.add_module("logits", nn.Linear(self.width, vocabulary, bias=False))
        return net

    def keras(self, shapes: Shapes) -> Any:
        import keras
        from keras import layers

        from pipeline.models.keras_sequences import Convolution

        length, vocabulary = shapes.sequence
        stack = [keras.Input((length,), dtype="int32"), layers.Embedding(vocabulary, self.width, name="tokens")]
        stack += [
            Convolution(self.kernel_size, apart, name=f"convolution_{number}")
            for number, apart in enumerate(self.apart)
        ]
        return keras.Sequential([*stack, layers.Dense(vocabulary, use_bias=False, name="logits")], name="conv1d")
