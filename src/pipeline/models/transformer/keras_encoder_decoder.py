"""Encoder and decoder in Keras."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import layers, ops

from pipeline.models import PADDING
from pipeline.models.transformer import Block, Stacks
from pipeline.models.transformer.keras_block import ResidualBlock
from pipeline.models.transformer.keras_parts import Attention, Logits, Table, WithSettings, norm


@keras.saving.register_keras_serializable("pipeline")
class Seen(WithSettings):
    """Of sources and targets side by side (N, S + T), which tokens of the source are not padding: (N, 1, 1, S)."""

    settings = ("source",)

    def __init__(self, source: int, **more: Any) -> None:
        super().__init__(**more)
        self.source = source

    def call(self, x_NW: Any) -> Any:
        """Of a batch."""
        return ops.not_equal(x_NW[:, None, None, : self.source], PADDING)


@keras.saving.register_keras_serializable("pipeline")
class Entering(WithSettings):
    """Embedded tokens (N, S + T, D), times the root of their width (section 3.4), as source and target with positions.

    `length`: S. `kind`: of the positions.
    """

    settings = ("length", "kind")

    def __init__(self, length: int, kind: str, **more: Any) -> None:
        super().__init__(**more)
        self.length, self.kind = length, kind
        self.tables = []
        if kind in ("learned", "linear", "sinusoidal"):
            self.tables = [Table(kind, name=name, dtype=self.dtype_policy) for name in ("source", "target")]

    def build(self, shape: Any) -> None:
        """Make what is learned of the positions."""
        for table, length in zip(self.tables, (self.length, shape[1] - self.length), strict=False):
            table.build((shape[0], length, shape[2]))
        self.built = True

    def call(self, h_NWD: Any) -> Any:
        """Source (N, S, D) and target (N, T, D)."""
        h_NWD = h_NWD * math.sqrt(h_NWD.shape[-1])
        parts = h_NWD[:, : self.length], h_NWD[:, self.length :]
        return tuple(table(part) for table, part in zip(self.tables, parts, strict=True)) if self.tables else parts


@keras.saving.register_keras_serializable("pipeline")
class EncoderBlock(ResidualBlock):
    """Attention among the tokens of a source that are not padding, and an MLP."""

    def call(self, x_NSD: Any, seen_N11S: Any, training: bool | None = None) -> Any:
        """Of a batch."""
        dropped = self.dropping(training)
        x_NSD = self.added(x_NSD, lambda x: self.attention(x, seen=seen_N11S), self.attention_norm, dropped)
        return self.added(x_NSD, self.mlp, self.mlp_norm, dropped)


@keras.saving.register_keras_serializable("pipeline")
class DecoderBlock(ResidualBlock):
    """Attention to the target so far, then to the source, and an MLP."""

    def __init__(self, block: Block | dict[str, Any], **more: Any) -> None:
        super().__init__(block, **more)
        self.cross_norm = norm(self.block, "cross_norm", **self.of)
        self.cross = Attention(self.block, name="cross", **self.of)

    def parts(self) -> tuple[Any, ...]:
        """The layers that have weights."""
        return *super().parts(), self.cross_norm, self.cross

    def call(self, x_NTD: Any, source_NSD: Any, seen_N11S: Any, training: bool | None = None) -> Any:
        """Of a batch."""
        dropped = self.dropping(training)
        x_NTD = self.added(x_NTD, self.attention, self.attention_norm, dropped)
        x_NTD = self.added(x_NTD, lambda x: self.cross(x, source_NSD, seen_N11S), self.cross_norm, dropped)
        return self.added(x_NTD, self.mlp, self.mlp_norm, dropped)


def encoder_decoder(settings: Stacks, source: int, target: int, vocabulary: int) -> Any:
    """A keras.Model from sources and targets so far (N, S + T) to logits (N, T, V)."""
    block, before = settings.block, settings.block.norm_place == "before"
    x_NW = keras.Input((source + target,), dtype="int32")
    seen_N11S = Seen(source, name="seen")(x_NW)
    tokens = layers.Embedding(vocabulary, block.width, name="tokens")
    source_NSD, target_NTD = Entering(source, settings.positions, name="positions")(tokens(x_NW))
    if block.dropout:
        source_NSD, target_NTD = (layers.Dropout(block.dropout)(h) for h in (source_NSD, target_NTD))
    for number in range(settings.layers):
        source_NSD = EncoderBlock(settings.encoder_block, name=f"encoder.{number}")(source_NSD, seen_N11S)
    if before:
        source_NSD = norm(block, "encoder_norm", None)(source_NSD)
    for number in range(settings.layers):
        target_NTD = DecoderBlock(block, name=f"decoder.{number}")(target_NTD, source_NSD, seen_N11S)
    if before:
        target_NTD = norm(block, "norm", None)(target_NTD)
    if settings.tied:
        logits_NTV = Logits(tokens)(target_NTD)
    else:
        logits_NTV = layers.Dense(vocabulary, use_bias=False, name="logits")(target_NTD)
    return keras.Model(x_NW, logits_NTV, name="encoder_decoder")
