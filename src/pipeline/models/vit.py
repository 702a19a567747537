"""A transformer's encoder for images, which sees them as sequences of patches (row E4).

Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021; the mean over all patches makes the logits, as in Beyer
et al., "Better plain ViT baselines for ImageNet-1k", 2022, in place of a class token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveInt

from pipeline.contracts import Model
from pipeline.models import Rate, Shapes
from pipeline.models.transformer import Activation, Encoder, Norm, block_of, check_heads
from pipeline.models.weights import small_logits
from pipeline.spec import spec


@spec
class Vit(Model):
    """`layers` blocks of `heads` heads over `width` numbers for each patch of `patch` x `patch` pixels.

    `hidden`: the MLP's inner width (None: four times the width; of swiglu 8/3 of it). `recompute`: keep each
    block's input alone for the backward pass, which computes the rest anew.
    """

    shared_start: ClassVar[bool] = True
    takes = "numbers"

    patch: PositiveInt = 4
    layers: PositiveInt = 4
    heads: PositiveInt = 4
    width: PositiveInt = 64
    hidden: PositiveInt | None = None
    norm: Norm = "layer"
    activation: Activation = "gelu"
    dropout: Rate = 0.0
    recompute: bool = False

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)

    def encoder(self) -> Encoder:
        """All its settings, for a framework's builder."""
        block = block_of(self, key_heads=self.heads, bias=True, causal=False)
        return Encoder(block, self.layers, self.patch)

    def first_value(self, name: str, drawn: np.ndarray) -> np.ndarray:
        return small_logits(name, drawn)

    def check_shapes(self, shapes: Shapes) -> None:
        self._image(shapes)

    def rungs(self) -> Mapping[str, str]:
        return {} if self.recompute else {"recompute": "model.recompute=true"}

    def torch(self, shapes: Shapes) -> Any:
        from pipeline.models.transformer import torch_vit

        return torch_vit.Vit(self.encoder(), self._image(shapes), shapes.classes)

    def keras(self, shapes: Shapes) -> Any:
        from pipeline.models.transformer import keras_vit

        return keras_vit.vit(self.encoder(), self._image(shapes), shapes.classes)

    def _image(self, shapes: Shapes) -> tuple[int, int, int]:
        """Height, width and channels. Raises ValueError for images that patches do not cover."""
        height, width, _ = shapes.image
        if height % self.patch or width % self.patch:
            sizes = [str(size) for size in range(1, min(height, width) + 1) if not (height % size or width % size)]
            raise ValueError(f"patch={self.patch}: does not divide {height}x{width} images; use {', '.join(sizes)}")
        return shapes.image
