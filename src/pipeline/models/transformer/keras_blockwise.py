"""Attention in Keras whose memory grows with the length of a sequence, not with its square.

Scores are made for a block of queries and a block of keys at a time. A query keeps its largest score and the sum of its
weights so far (Rabe and Staats, "Self-attention does not need O(n^2) memory", 2021). The backward pass makes the scores
anew from the logarithms of these sums (Dao et al., "FlashAttention", 2022, appendix B.4).

Axes beside those of the package: N blocks of queries, M of keys; I queries in a block, J keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from pipeline.models.keras_layers import wide_dtype

BLOCK = 512  # positions in a block, at most


def blockwise(q_BHTK: Any, k_BHSK: Any, v_BHSK: Any, seen: Any, *, causal: bool) -> Any:
    """softmax(Q K^T / sqrt(K)) V over what is seen, of shape (B, H, T, K); the softmax in float32 at the least.

    `seen`: (..., T or 1, S), or None for all. `causal`: in its place, keys at or before a query (T = S). A query that
    sees none gets zeros.
    """
    plan = Plan(q_BHTK.shape[2], k_BHSK.shape[2], seen, causal)

    @ops.custom_gradient
    def attention(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        q, k, v = _cut(q, plan.rows), _cut(k, plan.columns), _cut(v, plan.columns)
        found, logs = _forward(plan, q, k, v)

        def backward(gradient: Any) -> tuple[Any, Any, Any]:
            gradients = _backward(plan, (q, k, v), (found, logs), _cut(gradient, plan.rows))
            lengths = (plan.length, plan.keys, plan.keys)
            return tuple(
                _joined(ops.cast(one, q.dtype), length) for one, length in zip(gradients, lengths, strict=True)
            )

        return _joined(found, plan.length), backward

    return attention(q_BHTK, k_BHSK, v_BHSK)


@dataclass(frozen=True)
class Blocks:
    """Positions cut into `count` blocks of `size`; the last is filled up."""

    count: int
    size: int

    @classmethod
    def of(cls, length: int) -> Blocks:
        """As even as can be, so that little is filled up."""
        count = -(-length // BLOCK)
        return cls(count, -(-length // count))


@dataclass(frozen=True)
class Plan:
    """Which blocks of T queries attend to which of S keys, and to what in them."""

    length: int
    keys: int
    seen: Any
    causal: bool

    @property
    def rows(self) -> Blocks:
        """Of queries."""
        return Blocks.of(self.length)

    @property
    def columns(self) -> Blocks:
        """Of keys."""
        return Blocks.of(self.keys)

    def pairs(self) -> np.ndarray:
        """(P, 2): the number of a block of queries and of a block of keys of which it may see some."""
        every = np.indices((self.rows.count, self.columns.count), dtype=np.int32).reshape(2, -1).T
        return every[every[:, 0] >= every[:, 1]] if self.causal else every

    def mask(self, row: Any, column: Any) -> Any:
        """What a block of queries sees in a block of keys: (..., I or 1, J)."""
        queries_I = row * self.rows.size + np.arange(self.rows.size, dtype=np.int32)
        keys_J = column * self.columns.size + np.arange(self.columns.size, dtype=np.int32)
        inside_J = keys_J < self.keys
        if self.causal:
            return ops.logical_and(queries_I[:, None] >= keys_J, inside_J)
        if self.seen is None:
            return inside_J[None]
        seen = ops.take(self.seen, ops.minimum(keys_J, self.keys - 1), axis=-1)
        if seen.shape[-2] > 1:
            seen = ops.take(seen, ops.minimum(queries_I, self.length - 1), axis=-2)
        return ops.logical_and(seen, inside_J)


def _forward(plan: Plan, q_NBHIK: Any, k_MBHJK: Any, v_MBHJK: Any) -> tuple[Any, Any]:
    """What is found (N, B, H, I, K), and the logarithm (N, B, H, I, 1) of the sum of exp(score)."""
    wide = wide_dtype(q_NBHIK)
    found_NBHIK = ops.zeros_like(q_NBHIK, dtype=wide)
    sums_NBHI1 = found_NBHIK[..., :1]
    pairs = ops.convert_to_tensor(plan.pairs())

    def step(number: Any, so_far: Any) -> Any:
        found, sums, highest = so_far
        row, column = pairs[number, 0], pairs[number, 1]
        scores_BHIJ, mask = _scores(plan, q_NBHIK, k_MBHJK, row, column)
        before = highest[row]
        now = ops.maximum(before, ops.max(ops.where(mask, scores_BHIJ, _lowest(wide)), axis=-1, keepdims=True))
        weights_BHIJ = ops.where(mask, ops.exp(scores_BHIJ - now), 0)
        shrunk = ops.exp(before - now)
        added_BHIK = ops.cast(ops.matmul(ops.cast(weights_BHIJ, v_MBHJK.dtype), v_MBHJK[column]), wide)
        return (
            _put(found, row, found[row] * shrunk + added_BHIK),
            _put(sums, row, sums[row] * shrunk + ops.sum(weights_BHIJ, axis=-1, keepdims=True)),
            _put(highest, row, now),
        )

    start = (found_NBHIK, sums_NBHI1, ops.full_like(sums_NBHI1, _lowest(wide)))
    found_NBHIK, sums_NBHI1, highest_NBHI1 = ops.fori_loop(0, len(plan.pairs()), step, start)
    some = sums_NBHI1 > 0
    sums_NBHI1 = ops.where(some, sums_NBHI1, 1)
    logs_NBHI1 = ops.where(some, highest_NBHI1 + ops.log(sums_NBHI1), 0)
    return ops.cast(found_NBHIK / sums_NBHI1, q_NBHIK.dtype), logs_NBHI1


def _backward(plan: Plan, qkv: tuple[Any, Any, Any], kept: tuple[Any, Any], gradient_NBHIK: Any) -> Any:
    """The gradients of q, k and v, in blocks. `kept`: what _forward has given."""
    (q_NBHIK, k_MBHJK, v_MBHJK), (found_NBHIK, logs_NBHI1) = qkv, kept
    dtype, wide = q_NBHIK.dtype, wide_dtype(q_NBHIK)
    along_NBHI1 = ops.sum(ops.cast(gradient_NBHIK, wide) * ops.cast(found_NBHIK, wide), axis=-1, keepdims=True)
    pairs = ops.convert_to_tensor(plan.pairs())

    def step(number: Any, so_far: Any) -> Any:
        of_q, of_k, of_v = so_far
        row, column = pairs[number, 0], pairs[number, 1]
        scores_BHIJ, mask = _scores(plan, q_NBHIK, k_MBHJK, row, column)
        weights_BHIJ = ops.where(mask, ops.exp(scores_BHIJ - logs_NBHI1[row]), 0)
        of_weights_BHIJ = ops.cast(ops.matmul(gradient_NBHIK[row], _transposed(v_MBHJK[column])), wide)
        of_scores_BHIJ = weights_BHIJ * (of_weights_BHIJ - along_NBHI1[row]) / math.sqrt(q_NBHIK.shape[-1])
        weights_BHIJ, of_scores_BHIJ = ops.cast(weights_BHIJ, dtype), ops.cast(of_scores_BHIJ, dtype)
        added = (
            ops.matmul(of_scores_BHIJ, k_MBHJK[column]),
            ops.matmul(_transposed(of_scores_BHIJ), q_NBHIK[row]),
            ops.matmul(_transposed(weights_BHIJ), gradient_NBHIK[row]),
        )
        return tuple(
            _put(to, at, to[at] + ops.cast(one, wide))
            for to, at, one in zip((of_q, of_k, of_v), (row, column, column), added, strict=True)
        )

    return ops.fori_loop(0, len(plan.pairs()), step, tuple(ops.zeros_like(one, dtype=wide) for one in qkv))


def _scores(plan: Plan, q_NBHIK: Any, k_MBHJK: Any, row: Any, column: Any) -> tuple[Any, Any]:
    """Scores (B, H, I, J) of a block of queries and one of keys, and which of them count."""
    scores_BHIJ = ops.cast(ops.matmul(q_NBHIK[row], _transposed(k_MBHJK[column])), wide_dtype(q_NBHIK))
    return scores_BHIJ / math.sqrt(q_NBHIK.shape[-1]), plan.mask(row, column)


def _cut(x_BHTK: Any, blocks: Blocks) -> Any:
    """(N, B, H, I, K), filled up with zeros."""
    heads, length, head = x_BHTK.shape[1:]
    padded = ops.pad(x_BHTK, ((0, 0), (0, 0), (0, blocks.count * blocks.size - length), (0, 0)))
    return ops.transpose(ops.reshape(padded, (-1, heads, blocks.count, blocks.size, head)), (2, 0, 1, 3, 4))


def _joined(x_NBHIK: Any, length: int) -> Any:
    """(B, H, T, K), without what was filled up."""
    (count, _, heads, size, head) = x_NBHIK.shape
    joined = ops.reshape(ops.transpose(x_NBHIK, (1, 2, 0, 3, 4)), (-1, heads, count * size, head))
    return joined[:, :, :length]


def _put(whole: Any, at: Any, block: Any) -> Any:
    return ops.slice_update(whole, (at, *np.zeros(4, np.int32)), block[None])


def _transposed(x_BHIJ: Any) -> Any:
    return ops.transpose(x_BHIJ, (0, 1, 3, 2))


def _lowest(dtype: str) -> float:
    return float(np.finfo(dtype).min)
