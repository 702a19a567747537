"""The parts of a transformer: in plain NumPy after the formulas (reference.py), in torch and in Keras.

Vaswani et al., "Attention is all you need", 2017. Letters behind a name are its axes: B batch, T and S positions
(of queries, of keys), D width, H heads, K the width of a head, F the width of an MLP, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

Positions = Literal["none", "linear", "sinusoidal", "learned", "rotary"]
Norm = Literal["layer", "rms"]
NormPlace = Literal["before", "after"]
Activation = Literal["gelu", "relu2", "swiglu"]

EPSILON = 1e-5  # beside a variance
ROTARY_BASE = 10_000.0
BLOCKWISE_FROM = 1024  # queries or keys, from which attention in Keras is computed block by block


@dataclass(frozen=True)
class Block:
    """What a block is made of.

    `width`: D. `heads`: of queries; `key_heads`: of keys and values, which groups of heads share. `norm_place`: before
    a part (pre-norm) or after its sum (post-norm). `hidden`: F. `normed_heads`: queries and keys are normalised.
    `recompute`: the backward pass computes the block anew, of which only the input is kept.
    """

    width: int
    heads: int
    key_heads: int
    hidden: int
    norm: Norm = "layer"
    norm_place: NormPlace = "before"
    activation: Activation = "gelu"
    bias: bool = False
    normed_heads: bool = False
    rotary: bool = False
    causal: bool = True
    dropout: float = 0.0
    recompute: bool = False

    @property
    def head(self) -> int:
        """K."""
        return self.width // self.heads


def block_of(model: Any, **more: Any) -> Block:
    """The block that a model's settings describe, those of the same names. `more`: what is not a setting of it.

    A `hidden` of None is the usual one: four times the width; of swiglu, which has three kernels, 8/3 of it.
    """
    names = {field.name for field in fields(Block)}
    settings = {field.name: getattr(model, field.name) for field in fields(model) if field.name in names}
    usual = 8 * model.width // 3 if model.activation == "swiglu" else 4 * model.width
    return Block(**settings | {"hidden": model.hidden or usual} | more)


def check_heads(width: int, heads: int, positions: Positions = "none") -> None:
    """Refuse a width that the heads do not divide, or heads that rotary positions cannot turn. Raises ValueError."""
    unit = 2 if positions == "rotary" else 1  # numbers of a head that belong together: rotary positions turn pairs
    if width % heads == 0 and width // heads % unit == 0:
        return
    near = "" if width % unit else f"; the nearest that fits is model.heads={_nearest_divisor(width // unit, heads)}"
    if width % heads:
        raise ValueError(f"width={width}: not divisible by model.heads={heads}{near}")
    raise ValueError(f"positions=rotary: needs heads of an even width, not {width // heads}{near}")


def _nearest_divisor(number: int, wanted: int) -> int:
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return min((*small, *(number // one for one in small)), key=lambda one: (abs(one - wanted), one))


@dataclass(frozen=True)
class Decoder:
    """A stack of `layers` blocks between tokens and logits.

    `positions`: how a token's position enters. `tied`: the logits are made by the tokens' embeddings. `soft_cap`: a
    bound of the logits.
    """

    block: Block
    layers: int
    positions: Positions
    tied: bool = False
    soft_cap: float | None = None


@dataclass(frozen=True)
class Stacks:
    """An encoder over a source and a decoder over a target, of `layers` blocks each. `block`: the decoder's.

    `positions`, `tied`: as of a Decoder. The decoder's blocks attend to what the encoder has made of the source, too.
    """

    block: Block
    layers: int
    positions: Positions
    tied: bool = False

    @property
    def encoder_block(self) -> Block:
        """Of the encoder: a position attends to those after it, too."""
        return replace(self.block, causal=False)


@dataclass(frozen=True)
class Encoder:
    """A stack of `layers` blocks over the patches, of `patch` x `patch` pixels, of an image."""

    block: Block
    layers: int
    patch: int
