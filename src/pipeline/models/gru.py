"""A recurrent network for tokens, of gated recurrent units (row E5).

Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine translation", 2014,
equations 5 to 8; the reset gate acts behind the recurrent product, as in cuDNN, torch and Keras.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveInt

from pipeline.contracts import Model
from pipeline.models import Shapes
from pipeline.models.weights import small_logits
from pipeline.spec import spec


@spec
class Gru(Model):
    """`layers` of `width` units, one behind the other. What it knows of the past is the state of its units."""

    shared_start: ClassVar[bool] = True
    takes = "tokens"

    layers: PositiveInt = 1
    width: PositiveInt = 128

    def first_value(self, name: str, drawn: np.ndarray) -> np.ndarray:
        return small_logits(name, drawn)

    def torch(self, shapes: Shapes) -> Any:
        from pipeline.models.torch_sequences import GruLayer, token_stack

        _, vocabulary = shapes.sequence
        units = {f"units_{number}": GruLayer(self.width) for number in range(self.layers)}
        return token_stack(vocabulary, self.width, units)

    def keras(self, shapes: Shapes) -> Any:
        from keras.layers import GRU

        from pipeline.models.keras_sequences import token_stack

        # Keras's own start of the recurrent kernel is orthogonal, which it cannot compute in 16 bits, and is not kept.
        options = {"return_sequences": True, "recurrent_initializer": "zeros"}
        units = [GRU(self.width, name=f"units_{number}", **options) for number in range(self.layers)]
        return token_stack("gru", *shapes.sequence, self.width, units)
