"""A transformer's decoder, which predicts the next token (rows E1, E2).

Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.3. Later changes are
settings: rotary positions, RMSNorm, SwiGLU and ReLU squared, grouped keys, normalised heads, a cap on the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from pipeline.contracts import Model
from pipeline.models import Rate, Shapes
from pipeline.models.transformer import Activation, Block, Decoder, Norm, NormPlace, Positions, block_of, check_heads
from pipeline.models.weights import small_logits
from pipeline.runs.weights import Weights
from pipeline.spec import spec


@spec
class Gpt(Model):
    """`layers` blocks of `heads` heads over `width` numbers for each token.

    `key_heads`: of keys and values (None: as many as of queries). `hidden`: the MLP's inner width (None: four times the
    width; of swiglu 8/3 of it). `tied`: the logits are computed with the tokens' embeddings. `soft_cap`: a bound of the
    logits. `zero_projections`: what a block adds is zero at first. `recompute`: keep each block's input alone for the
    backward pass, which computes the rest anew.
    """

    shared_start: ClassVar[bool] = True
    takes = "tokens"

    layers: PositiveInt = 4
    heads: PositiveInt = 4
    key_heads: PositiveInt | None = None
    width: PositiveInt = 128
    hidden: PositiveInt | None = None
    positions: Positions = "learned"
    norm: Norm = "layer"
    norm_place: NormPlace = "before"
    activation: Activation = "gelu"
    bias: bool = False
    tied: bool = False
    normed_heads: bool = False
    soft_cap: PositiveFloat | None = None
    zero_projections: bool = False
    dropout: Rate = 0.0
    recompute: bool = False

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads, self.positions)
        if self.heads % self._key_heads:
            raise ValueError(f"key_heads={self.key_heads}: model.heads={self.heads} cannot share them evenly")

    @property
    def _key_heads(self) -> int:
        return self.key_heads or self.heads

    def block(self) -> Block:
        """The settings of its blocks."""
        return block_of(self, key_heads=self._key_heads, rotary=self.positions == "rotary")

    def decoder(self) -> Decoder:
        """All its settings, for a framework's builder."""
        return Decoder(self.block(), self.layers, self.positions, self.tied, self.soft_cap)

    def training_flop(self, weights: Weights, length: int) -> float:
        """FLOP of a training step for each token, in sequences of `length`.

        6 for each parameter but those that are looked up, and 12 for each layer, number of the width and position that
        a token sees (Chowdhery et al., "PaLM", 2022, appendix B, who count all positions): (length + 1) / 2 on average.
        """
        looked_up = {"positions.embeddings", *(() if self.tied else ("tokens.embeddings",))}
        multiplied = sum(array.size for name, array in weights.items() if name not in looked_up)
        return 6.0 * multiplied + 6.0 * self.layers * self.width * (length + 1)

    def rungs(self) -> Mapping[str, str]:
        return {} if self.recompute else {"recompute": "model.recompute=true"}

    def first_value(self, name: str, drawn: np.ndarray) -> np.ndarray:
        if self.zero_projections and name.endswith((".output.kernel", ".outer.kernel")):
            return np.zeros_like(drawn)
        return small_logits(name, drawn)

    def torch(self, shapes: Shapes) -> Any:
        from pipeline.models.transformer import torch_gpt

        length, vocabulary = shapes.sequence
        return torch_gpt.Gpt(self.decoder(), length, vocabulary)

    def keras(self, shapes: Shapes) -> Any:
        from pipeline.models.transformer import keras_gpt

        return keras_gpt.gpt(self.decoder(), *shapes.sequence)

    def torch_cached(self, net: Any) -> Any:
        from pipeline.models.transformer import torch_gpt

        return torch_gpt.Cached(net)

    def keras_cached(self, model: Any) -> Any:
        from pipeline.models.transformer import keras_gpt

        return keras_gpt.Cached(model)
