"""A stack of causal convolutions over tokens (row E5).

Bai et al., "An empirical evaluation of generic convolutional and recurrent networks for sequence modeling", 2018,
section 3; without their normalisation, and plain unless `dilation` is set.
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
class Conv1d(Model):
    """`layers` of `width` channels, each h + GELU(convolution of h), which sees `kernel_size` positions, its own last.

    `dilation`: these positions lie one apart in the first layer, and in each further one so many times as far apart
    (1: a plain stack; 2: what is seen doubles with each layer).
    """

    shared_start: ClassVar[bool] = True
    takes = "tokens"

    layers: PositiveInt = 4
    width: PositiveInt = 64
    kernel_size: PositiveInt = 9
    dilation: PositiveInt = 1

    @property
    def apart(self) -> list[int]:
        """Of each layer, how far the positions that it sees lie apart."""
        return [self.dilation**number for number in range(self.layers)]

    def first_value(self, name: str, drawn: np.ndarray) -> np.ndarray:
        return small_logits(name, drawn)

    def torch(self, shapes: Shapes) -> Any:
        from pipeline.models.torch_sequences import Convolution, token_stack

        _, vocabulary = shapes.sequence
        convolutions = {
            f"convolution_{number}": Convolution(self.width, self.kernel_size, apart)
            for number, apart in enumerate(self.apart)
        }
        return token_stack(vocabulary, self.width, convolutions)

    def keras(self, shapes: Shapes) -> Any:
        from pipeline.models.keras_sequences import Convolution, token_stack

        convolutions = [
            Convolution(self.kernel_size, apart, name=f"convolution_{number}")
            for number, apart in enumerate(self.apart)
        ]
        return token_stack("conv1d", *shapes.sequence, self.width, convolutions)
