"""The transformer of 2017, an encoder and a decoder, which turns one sequence into another (row E3).

Vaswani et al., "Attention is all you need", 2017, section 3, with the changes that `model=gpt` has as settings.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveInt

from pipeline.contracts import Model
from pipeline.models import Rate, Shapes
from pipeline.models.transformer import Activation, Norm, NormPlace, Positions, Stacks, block_of, check_heads
from pipeline.models.weights import small_logits
from pipeline.spec import spec


@spec
class EncoderDecoder(Model):
    """`layers` blocks in the encoder and as many in the decoder, of `heads` heads over `width` numbers a token.

    `hidden`: the MLP's inner width (None: four times the width; of swiglu 8/3 of it). `tied`: the logits are computed
    with the tokens' embeddings, which source and target share.
    """

    shared_start: ClassVar[bool] = True
    takes = "pairs of sequences"

    layers: PositiveInt = 2
    heads: PositiveInt = 4
    width: PositiveInt = 64
    hidden: PositiveInt | None = None
    positions: Positions = "sinusoidal"
    norm: Norm = "layer"
    norm_place: NormPlace = "before"
    activation: Activation = "gelu"
    bias: bool = False
    tied: bool = False
    normed_heads: bool = False
    dropout: Rate = 0.0

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads, self.positions)

    def stacks(self) -> Stacks:
        """All its settings, for a framework's builder."""
        block = block_of(self, key_heads=self.heads, rotary=self.positions == "rotary")
        return Stacks(block, self.layers, self.positions, self.tied)

    def first_value(self, name: str, drawn: np.ndarray) -> np.ndarray:
        return small_logits(name, drawn)

    def torch(self, shapes: Shapes) -> Any:
        from pipeline.models.transformer import torch_encoder_decoder

        return torch_encoder_decoder.EncoderDecoder(self.stacks(), *_sizes(shapes))

    def keras(self, shapes: Shapes) -> Any:
        from pipeline.models.transformer import keras_encoder_decoder

        return keras_encoder_decoder.encoder_decoder(self.stacks(), *_sizes(shapes))


def _sizes(shapes: Shapes) -> tuple[int, int, int]:
    """Lengths of source and target, and the vocabulary. Raises ValueError where the examples are not such pairs."""
    if shapes.vocabulary is None or len(shapes.x) != 1 or len(shapes.outputs) != 2 or shapes.outputs[0] >= shapes.x[0]:
        raise ValueError(
            f"takes a source and a target side by side, and the examples of this dataset have shape {shapes.x} and "
            f"outputs of shape {shapes.outputs}; choose a dataset of pairs, such as dataset=dates"
        )
    return shapes.x[0] - shapes.outputs[0], shapes.outputs[0], shapes.vocabulary
