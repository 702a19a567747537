"""A block of a transformer in Keras, and how the backward pass computes one anew."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from pipeline.models.keras_layers import computed_once
from pipeline.models.transformer import Block
from pipeline.models.transformer.keras_parts import Attention, Mlp, OfBlock, norm


@keras.saving.register_keras_serializable("pipeline")
class TransformerBlock(OfBlock):
    """Attention and an MLP, each added to what came in."""

    def __init__(self, block: Block | dict[str, Any], **more: Any) -> None:
        super().__init__(block, **more)
        of = {"dtype": self.dtype_policy}
        self.attention_norm = norm(self.block, "attention_norm", **of)
        self.mlp_norm = norm(self.block, "mlp_norm", **of)
        self.attention = Attention(self.block, name="attention", **of)
        self.mlp = Mlp(self.block, name="mlp", **of)
        self.dropout = layers.Dropout(self.block.dropout, name="dropout", **of) if self.block.dropout else None

    def build(self, shape: Any) -> None:
        """Make the parts."""
        for one in (self.attention_norm, self.mlp_norm, self.attention, self.mlp):
            one.build(shape)
        self.built = True

    def call(self, x_BTD: Any, training: bool | None = None, past: Any = None) -> Any:
        """Of a sequence. `past`: see Attention; keys and values are then given back, too."""
        if training and past is None and self.block.recompute:
            return self._recomputed(x_BTD)

        def dropped(x: Any) -> Any:
            return x if self.dropout is None else self.dropout(x, training=training)

        return self._of(x_BTD, dropped, past)

    def _recomputed(self, x_BTD: Any) -> Any:
        """As in training, but computed again in the backward pass: with the same masks, whose seeds are drawn once."""
        rate = 0.0 if self.dropout is None else self.dropout.rate  # which a probe of a step sets to 0
        seeds = [self.dropout.seed_generator.next() for _ in range(2)] if self.dropout is not None else []

        def of(x: Any, seeds: Any) -> Any:
            left = iter(seeds)
            return self._of(x, lambda y: keras.random.dropout(y, rate, seed=Drawn(next(left))) if seeds else y)

        if keras.backend.backend() == "jax":
            from pipeline.models.transformer.jax_recompute import recomputed

            return recomputed(self, of, x_BTD, seeds)
        return keras.remat(lambda x: of(x, seeds))(x_BTD)

    def _of(self, x_BTD: Any, dropped: Any, past: Any = None) -> Any:
        kept = None

        def attended(x: Any) -> Any:
            nonlocal kept
            if past is None:
                return self.attention(x)
            found, kept = self.attention(x, past=past)
            return found

        if self.block.norm_place == "before":
            x_BTD = computed_once(x_BTD + dropped(attended(self.attention_norm(x_BTD))))
            x_BTD = computed_once(x_BTD + dropped(self.mlp(self.mlp_norm(x_BTD))))
        else:
            x_BTD = self.attention_norm(x_BTD + dropped(attended(x_BTD)))
            x_BTD = self.mlp_norm(x_BTD + dropped(self.mlp(x_BTD)))
        return x_BTD if past is None else (x_BTD, kept)


class Drawn(keras.random.SeedGenerator):
    """Gives a seed that has been drawn."""

    def __init__(self, seed: Any) -> None:  # not the base's, which makes a variable
        self.seed = seed

    def next(self, ordered: bool = True) -> Any:
        """The seed."""
        return self.seed
