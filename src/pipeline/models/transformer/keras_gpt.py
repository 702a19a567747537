"""The whole decoder in Keras."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from pipeline.models.transformer import Decoder
from pipeline.models.transformer.keras_block import TransformerBlock
from pipeline.models.transformer.keras_parts import Logits, SoftCap, Table, norm


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


class Cached:
    """A model of `gpt` that keeps the keys and values of what it has seen (pipeline.models.cached).

    A cache: keys and values (B, H, S, K) of each block. To be called inside a compiled function: every shape is fixed.
    """

    def __init__(self, model: Any) -> None:
        self.layers = model.layers[1:]  # a chain behind the input
        self.blocks = [layer for layer in self.layers if isinstance(layer, TransformerBlock)]
        self.slots = model.input_shape[1]

    def prefill(self, tokens_BT: Any, lengths_B: Any) -> tuple[Any, Any]:
        """Logits (B, V) after each row's last token, and the cache."""
        batch, length = tokens_BT.shape
        empty = []
        for block in self.blocks:
            shape = (batch, block.block.key_heads, self.slots, block.block.head)
            empty.append((ops.zeros(shape, block.compute_dtype),) * 2)
        at_BT = ops.tile(ops.arange(length, dtype="int32")[None], (batch, 1))
        return self._run(tokens_BT, at_BT, lengths_B - 1, empty)

    def step(self, tokens_B: Any, at_B: Any, past: Any) -> tuple[Any, Any]:
        """Logits (B, V) after one token more a row, the one at position `at`."""
        return self._run(tokens_B[:, None], at_B[:, None], ops.zeros_like(at_B), past)

    def _run(self, tokens_BT: Any, at_BT: Any, last_B: Any, past: Any) -> tuple[Any, Any]:
        h, kept = tokens_BT, list[Any]()
        for layer in self.layers:
            if isinstance(layer, TransformerBlock):
                h, new = layer(h, past=(*past[len(kept)], at_BT))
                kept.append(new)
                if len(kept) == len(past):
                    h = ops.take_along_axis(h, last_B[:, None, None], axis=1)[:, 0]
            else:
                h = layer(h, at_BT) if isinstance(layer, Table) else layer(h)
        return h, kept
