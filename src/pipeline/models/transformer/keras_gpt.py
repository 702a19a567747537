"""The whole decoder in Keras."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from pipeline.models.transformer import Decoder
from pipeline.models.transformer.keras_parts import Logits, SoftCap, Table, TransformerBlock, norm


def gpt(settings: Decoder, length: int, vocabulary: int) -> Any:
    """A keras.Model from tokens (B, T) to logits (B, T, V)."""
    block = settings.block
    x_BT = keras.Input((length,), dtype="int32")
    tokens = layers.Embedding(vocabulary, block.width, name="tokens")
    h_BTD = tokens(x_BT)
    if settings.positions in ("learned", "linear", "sinusoidal"):
        h_BTD = Table(settings.positions, name="positions")(h_BTD)
    if block.dropout:
        h_BTD = layers.Dropout(block.dropout)(h_BTD)
    for number in range(settings.layers):
        h_BTD = TransformerBlock(block, name=f"blocks.{number}")(h_BTD)
    if block.norm_place == "before":
        h_BTD = norm(block, "norm", None)(h_BTD)
    if settings.tied:
        logits_BTV = Logits(tokens)(h_BTD)
    else:
        logits_BTV = layers.Dense(vocabulary, use_bias=False, name="logits")(h_BTD)
    if settings.soft_cap is not None:
        logits_BTV = SoftCap(settings.soft_cap)(logits_BTV)
    return keras.Model(x_BT, logits_BTV, name="gpt")
