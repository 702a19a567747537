"""The parts of a transformer in Keras. Imported only by a model's Keras builder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import keras
import numpy as np
from keras import layers, ops

from pipeline.models.keras_layers import gelu, wide_dtype
from pipeline.models.transformer import BLOCKWISE_FROM, EPSILON, Block, positions
from pipeline.models.transformer.keras_blockwise import blockwise


class WithSettings(layers.Layer):
    """A layer that is saved with the arguments of its builder that `settings` names, and read again with them."""

    settings: ClassVar[tuple[str, ...]]

    def get_config(self) -> dict[str, Any]:
        """What its builder takes."""
        return {**super().get_config(), **{name: getattr(self, name) for name in self.settings}}


class OfBlock(layers.Layer):
    """A layer that a block describes, and that can be saved and read."""

    def __init__(self, block: Block | dict[str, Any], **more: Any) -> None:
        super().__init__(**more)
        self.block = block if isinstance(block, Block) else Block(**block)

    def get_config(self) -> dict[str, Any]:
        """What its builder takes."""
        return {**super().get_config(), "block": asdict(self.block)}

    def dense(self, units: int, name: str) -> Any:
        """A layer of matrix products."""
        return layers.Dense(units, use_bias=self.block.bias, name=name, dtype=self.dtype_policy)


@keras.saving.register_keras_serializable("pipeline")
class RmsNorm(layers.Layer):
    """x / sqrt(mean(x^2)) * gamma, computed in float32 at the least."""

    def build(self, shape: Any) -> None:
        """Make gamma."""
        self.gamma = self.add_weight(name="gamma", shape=(shape[-1],), initializer="ones")
        self.built = True

    def call(self, x: Any) -> Any:
        """Of the last axis."""
        return ops.cast(rms_normed(x) * ops.cast(self.gamma, wide_dtype(x)), x.dtype)


def rms_normed(x: Any) -> Any:
    """x / sqrt(mean(x^2)) over the last axis."""
    wide = ops.cast(x, wide_dtype(x))
    return wide * ops.rsqrt(ops.mean(ops.square(wide), axis=-1, keepdims=True) + EPSILON)


def norm(block: Block, name: str, dtype: Any) -> Any:
    """A norm over the width."""
    if block.norm == "rms":
        return RmsNorm(name=name, dtype=dtype)
    return layers.LayerNormalization(epsilon=EPSILON, center=block.bias, name=name, dtype=dtype)


@keras.saving.register_keras_serializable("pipeline")
class Attention(OfBlock):
    """Several heads of softmax(Q K^T / sqrt(K)) V. A position that sees none gets zeros.

    `way`: how it was computed when it was called last, plain or blockwise; the receipt says it.
    """

    way: str | None = None

    def __init__(self, block: Block | dict[str, Any], **more: Any) -> None:
        super().__init__(block, **more)
        shared = self.block.key_heads * self.block.head
        self.query = self.dense(self.block.width, "query")
        self.key = self.dense(shared, "key")
        self.value = self.dense(shared, "value")
        self.output_layer = self.dense(self.block.width, "output")

    def build(self, shape: Any) -> None:
        """Make the kernels. `shape`: of x, and of what is looked at."""
        for one in (self.query, self.key, self.value, self.output_layer):
            one.build((None, None, self.block.width))
        self.built = True

    def call(self, x_BTD: Any, other_BSD: Any = None, seen: Any = None, past: Any = None) -> Any:
        """Of x to `other` (None: to itself). `seen`: (..., T, S), in the place of the causal order.

        `past`: keys and values (B, H, S, K) of what came before, and the positions (B, T) of x; these, with those of
        x among them, are then given back beside what was found.
        """
        block, other = self.block, x_BTD if other_BSD is None else other_BSD
        alone = other_BSD is None and past is None and plain(self.query, self.key, self.value)
        projected = at_once((self.query, self.key, self.value), x_BTD) if alone else self._each(x_BTD, other)
        query, key, value = map(self._heads, projected)
        if block.normed_heads:
            query, key = (ops.cast(rms_normed(one), one.dtype) for one in (query, key))
        if block.rotary:
            at = () if past is None else (past[2], past[0].shape[2])
            query, key = turned(query, *at), turned(key, *at)
        if past is not None:
            keys, values, seen = joined(past, key, value)
            found_BHTK = shared_attention(query, keys, values, seen)
            return self._merged(found_BHTK), (keys, values)
        if block.key_heads != block.heads:
            key, value = (ops.repeat(one, block.heads // block.key_heads, axis=1) for one in (key, value))
        causal = block.causal and seen is None and other_BSD is None
        self.way = "blockwise" if max(x_BTD.shape[1], other.shape[1]) >= BLOCKWISE_FROM else "plain"
        if self.way == "blockwise":
            return self._merged(blockwise(query, key, value, seen, causal=causal))
        if causal:
            seen = np.tril(np.ones((x_BTD.shape[1],) * 2, bool))
        return self._merged(attention(query, key, value, seen))

    def _each(self, x_BTD: Any, other_BSD: Any) -> tuple[Any, Any, Any]:
        return self.query(x_BTD), self.key(other_BSD), self.value(other_BSD)

    def _merged(self, found_BHTK: Any) -> Any:
        merged = ops.transpose(found_BHTK, (0, 2, 1, 3))
        return self.output_layer(ops.reshape(merged, (-1, merged.shape[1], self.block.width)))

    def _heads(self, x_BTD: Any) -> Any:
        split = ops.reshape(x_BTD, (-1, x_BTD.shape[1], x_BTD.shape[2] // self.block.head, self.block.head))
        return ops.transpose(split, (0, 2, 1, 3))


def plain(*dense: Any) -> bool:
    """Whether these layers compute as Keras's own do: one with an adapter, or in a dtype of its own, is called."""
    policies = {one.dtype_policy.name for one in dense}
    return len(policies) == 1 and all(type(one).call is layers.Dense.call for one in dense)


def at_once(dense: Sequence[Any], x: Any) -> Any:
    """What each of several plain dense layers gives of the same x, by a single product."""
    found = ops.matmul(x, ops.concatenate([one.kernel for one in dense], axis=1))
    if dense[0].use_bias:
        found = found + ops.concatenate([one.bias for one in dense], axis=0)
    ends = np.cumsum([one.units for one in dense])[:-1]
    return ops.split(found, ends.tolist(), axis=-1)


def attention(q_BHTK: Any, k_BHSK: Any, v_BHSK: Any, seen: Any) -> Any:
    """softmax(Q K^T / sqrt(K)) V over what is `seen`; the softmax in float32 at the least."""
    scores = ops.matmul(q_BHTK, ops.transpose(k_BHSK, (0, 1, 3, 2)))
    scores = ops.cast(scores, wide_dtype(scores)) / math.sqrt(q_BHTK.shape[-1])
    if seen is None:
        weights = ops.softmax(scores)
    else:
        lowest = np.finfo(wide_dtype(scores)).min
        weights = ops.softmax(ops.where(seen, scores, lowest)) * ops.cast(
            ops.any(seen, -1, keepdims=True), scores.dtype
        )
    return ops.matmul(ops.cast(weights, v_BHSK.dtype), v_BHSK)


def joined(past: Any, key_BHTK: Any, value_BHTK: Any) -> tuple[Any, Any, Any]:
    """Keys and values (B, H, S, K) with the new ones in the slots of their positions, and what of them is seen.

    The positions (B, T) are 0 to T - 1 in every row, or one of each row's own.
    """
    keys, values, at_BT = past
    if at_BT.shape[1] > 1:
        keys, values = (ops.slice_update(to, (0,) * 4, new) for to, new in ((keys, key_BHTK), (values, value_BHTK)))
    else:
        rows, heads = np.indices(keys.shape[:2]).reshape(2, -1)
        slots = ops.stack([rows, heads, ops.take(at_BT[:, 0], rows)], axis=1)
        flat = (-1, keys.shape[3])
        keys, values = (
            ops.scatter_update(to, slots, ops.reshape(new, flat))
            for to, new in ((keys, key_BHTK), (values, value_BHTK))
        )
    return keys, values, np.arange(keys.shape[2]) <= at_BT[:, None, :, None]


def shared_attention(q_BHTK: Any, k_BGSK: Any, v_BGSK: Any, seen_B1TS: Any) -> Any:
    """Attention where groups of heads share keys and values, which are not repeated: a group's heads are like rows."""
    (batch, heads, length, head), groups = q_BHTK.shape, k_BGSK.shape[1]
    rows = ops.reshape(q_BHTK, (batch, groups, heads // groups * length, head))
    found = attention(rows, k_BGSK, v_BGSK, ops.tile(seen_B1TS, (1, 1, heads // groups, 1)))
    return ops.reshape(found, (batch, heads, length, head))


def turned(x_BHTK: Any, at_BT: Any = None, most: int | None = None) -> Any:
    """Rotary positions. `at`: which, below `most` (None: 0 to T - 1)."""
    tables = positions.rotary(most or x_BHTK.shape[-2], x_BHTK.shape[-1])
    cosines, sines = (ops.cast(table, x_BHTK.dtype) for table in tables)
    if at_BT is not None:
        cosines, sines = (ops.take(table, at_BT, axis=0)[:, None] for table in (cosines, sines))
    first, second = ops.split(x_BHTK, 2, axis=-1)
    return x_BHTK * cosines + ops.concatenate([-second, first], axis=-1) * sines


@keras.saving.register_keras_serializable("pipeline")
class Mlp(OfBlock):
    """What follows attention at every position by itself."""

    def __init__(self, block: Block | dict[str, Any], **more: Any) -> None:
        super().__init__(block, **more)
        self.inner = self.dense(self.block.hidden, "inner")
        if self.block.activation == "swiglu":
            self.gate = self.dense(self.block.hidden, "gate")
        self.outer = self.dense(self.block.width, "outer")

    def build(self, shape: Any) -> None:
        """Make the kernels."""
        self.inner.build((None, None, self.block.width))
        if self.block.activation == "swiglu":
            self.gate.build((None, None, self.block.width))
        self.outer.build((None, None, self.block.hidden))
        self.built = True

    def call(self, x: Any) -> Any:
        """At every position."""
        inner = self.inner(x)
        if self.block.activation == "gelu":
            inner = gelu(inner)
        elif self.block.activation == "relu2":
            inner = ops.square(ops.relu(inner))
        else:
            inner = ops.silu(inner) * self.gate(x)
        return self.outer(inner)


@keras.saving.register_keras_serializable("pipeline")
class Table(WithSettings):
    """Adds positions (T, D): learned ones, a learned direction times t / T, or waves."""

    settings = ("kind",)

    def __init__(self, kind: str, **more: Any) -> None:
        super().__init__(**more)
        self.kind = kind

    def build(self, shape: Any) -> None:
        """Make what is learned."""
        self.length = shape[1]
        if self.kind != "sinusoidal":
            sizes = tuple(shape[1:]) if self.kind == "learned" else (shape[2],)
            self.embeddings = self.add_weight(name="embeddings", shape=sizes)
        self.built = True

    def call(self, x_BTD: Any, at_BT: Any = None) -> Any:
        """x plus the positions `at` (None: 0 to T - 1)."""
        if self.kind == "learned":
            table = ops.cast(self.embeddings, x_BTD.dtype)
        elif self.kind == "linear":
            table = ops.cast(positions.linear(self.length), x_BTD.dtype) * ops.cast(self.embeddings, x_BTD.dtype)
        else:
            table = ops.cast(positions.sinusoidal(self.length, x_BTD.shape[2]), x_BTD.dtype)
        return x_BTD + (table if at_BT is None else ops.take(table, at_BT, axis=0))


@keras.saving.register_keras_serializable("pipeline")
class Logits(layers.Layer):
    """h E^T by the embeddings of the tokens, which it shares: it holds no weights."""

    def __init__(self, tokens: Any, **more: Any) -> None:
        super().__init__(**more)
        self.tokens = tokens

    def call(self, h_BTD: Any) -> Any:
        """(B, T, V)."""
        return ops.matmul(h_BTD, ops.transpose(ops.cast(self.tokens.embeddings, h_BTD.dtype)))

    def get_config(self) -> dict[str, Any]:
        """What its builder takes."""
        return {**super().get_config(), "tokens": keras.saving.serialize_keras_object(self.tokens)}


@keras.saving.register_keras_serializable("pipeline")
class SoftCap(WithSettings):
    """cap tanh(x / cap): no logit beyond the cap."""

    settings = ("cap",)

    def __init__(self, cap: float, **more: Any) -> None:
        super().__init__(**more)
        self.cap = cap

    def call(self, x: Any) -> Any:
        """Of each number."""
        return self.cap * ops.tanh(x / self.cap)
