"""The encoder of images in Keras."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from pipeline.models.transformer import Encoder
from pipeline.models.transformer.keras_block import TransformerBlock
from pipeline.models.transformer.keras_parts import Table, WithSettings, norm


@keras.saving.register_keras_serializable("pipeline")
class Patches(WithSettings):
    """Images (N, H, W, C) as (N, T, patch * patch * C): patches row by row, and the pixels of each row by row."""

    settings = ("patch",)

    def __init__(self, patch: int, **more: Any) -> None:
        super().__init__(**more)
        self.patch = patch

    def call(self, x_NHWC: Any) -> Any:
        """Of a batch."""
        size, (height, width, channels) = self.patch, x_NHWC.shape[1:]
        rows = ops.reshape(x_NHWC, (-1, height // size, size, width // size, size, channels))
        return ops.reshape(
            ops.transpose(rows, (0, 1, 3, 2, 4, 5)),
            (-1, (height // size) * (width // size), size * size * channels),
        )


def vit(settings: Encoder, image: tuple[int, int, int], classes: int) -> Any:
    """A keras.Model from images (N, H, W, C) to logits (N, classes)."""
    block = settings.block
    x_NHWC = keras.Input(image)
    h_NTD = layers.Dense(block.width, name="patches")(Patches(settings.patch, name="cut")(x_NHWC))
    h_NTD = Table("learned", name="positions")(h_NTD)
    if block.dropout:
        h_NTD = layers.Dropout(block.dropout)(h_NTD)
    for number in range(settings.layers):
        h_NTD = TransformerBlock(block, name=f"blocks.{number}")(h_NTD)
    mean_ND = layers.GlobalAveragePooling1D(name="mean")(norm(block, "norm", None)(h_NTD))
    return keras.Model(x_NHWC, layers.Dense(classes, name="logits")(mean_ND), name="vit")
