"""A block of a transformer in Keras, and how the backward pass computes one anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from pipeline.models.keras_layers import computed_once
from pipeline.models.transformer import Block
from pipeline.models.transformer.keras_parts import Attention, Mlp, OfBlock, norm

Function = Callable[[Any], Any]


class ResidualBlock(OfBlock):
    """What the blocks share: self-attention and an MLP, and how a part is added to what came in."""

    def __init__(self, block: Block | dict[str, Any], **more: Any) -> None:
        super().__init__(block, **more)
        self.of = {"dtype": self.dtype_policy}
        self.attention_norm = norm(self.block, "attention_norm", **self.of)
        self.mlp_norm = norm(self.block, "mlp_norm", **self.of)
        self.attention = Attention(self.block, name="attention", **self.of)
        self.mlp = Mlp(self.block, name="mlp", **self.of)
        self.dropout = layers.Dropout(self.block.dropout, name="dropout", **self.of) if self.block.dropout else None

    def parts(self) -> tuple[Any, ...]:
        """The layers that have weights."""
        return self.attention_norm, self.mlp_norm, self.attention, self.mlp

    def build(self, shape: Any) -> None:
        """Make the parts."""
        for one in self.parts():
            one.build(shape)
        self.built = True

    def dropping(self, training: bool | None) -> Function:
        """What drops some of a part's numbers in training."""
        return lambda x: x if self.dropout is None else self.dropout(x, training=training)

    def added(self, x: Any, part: Function, normalised: Any, dropped: Function) -> Any:
        """x + part(norm(x)), or norm(x + part(x))."""
        if self.block.norm_place == "before":
            return computed_once(x + dropped(part(normalised(x))))
        return normalised(x + dropped(part(x)))


@keras.saving.register_keras_serializable("pipeline")
class TransformerBlock(ResidualBlock):
    """Attention and an MLP, each added to what came in."""

    def call(self, x_BTD: Any, training: bool | None = None, past: Any = None) -> Any:
        """Of a sequence. `past`: see Attention; keys and values are then given back, too."""
        if training and past is None and self.block.recompute:
            return self._recomputed(x_BTD)
        return self._of(x_BTD, self.dropping(training), past)

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

    def _of(self, x_BTD: Any, dropped: Function, past: Any = None) -> Any:
        kept = None

        def attended(x: Any) -> Any:
            nonlocal kept
            if past is None:
                return self.attention(x)
            found, kept = self.attention(x, past=past)
            return found

        x_BTD = self.added(x_BTD, attended, self.attention_norm, dropped)
        x_BTD = self.added(x_BTD, self.mlp, self.mlp_norm, dropped)
        return x_BTD if past is None else (x_BTD, kept)


class Drawn(keras.random.SeedGenerator):
    """Gives a seed that has been drawn."""

    def __init__(self, seed: Any) -> None:  # not the base's, which makes a variable
        self.seed = seed

    def next(self, ordered: bool = True) -> Any:
        """The seed."""
        return self.seed
