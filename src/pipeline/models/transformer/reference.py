"""A transformer in plain NumPy, which follows the formulas line by line. The fast versions are compared with it.

Weights are in the common layout (pipeline.models.weights), under the names of the models' layers.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.models import PADDING
from pipeline.models.transformer import EPSILON, Block, Decoder, Stacks, positions
from pipeline.runs.weights import Weights

Maps = list[np.ndarray]  # of each block, the weights of its attention (B, H, T, S)


def attention(
    q_BHTK: np.ndarray, k_BHSK: np.ndarray, v_BHSK: np.ndarray, seen: np.ndarray | None, maps: Maps | None = None
) -> np.ndarray:
    """softmax(Q K^T / sqrt(K)) V, (B, H, T, K). `seen`: (..., T, S), False where t does not attend to s.

    A position that attends to none gets zeros (Vaswani et al., equation 1). The softmax is appended to `maps`.
    """
    scores_BHTS = q_BHTK @ k_BHSK.swapaxes(-1, -2) / math.sqrt(q_BHTK.shape[-1])
    weights_BHTS = softmax(scores_BHTS, seen)
    if maps is not None:
        maps.append(weights_BHTS)
    return weights_BHTS @ v_BHSK


def softmax(scores: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """exp(s) / sum of exp(s), over the last axis where `seen`; zeros where nothing is seen."""
    allowed = np.ones(scores.shape, bool) if seen is None else np.broadcast_to(seen, scores.shape)
    largest = np.max(scores, axis=-1, keepdims=True, where=allowed, initial=-math.inf)
    shifted = np.where(allowed, scores - np.where(np.isfinite(largest), largest, 0), 0)
    powers = np.where(allowed, np.exp(shifted), 0)
    total = powers.sum(axis=-1, keepdims=True)
    return np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)


def causal(length: int) -> np.ndarray:
    """(T, T): position t attends to positions up to t."""
    return np.tril(np.ones((length, length), bool))


def norm(x: np.ndarray, weights: Weights, at: str, kind: str) -> np.ndarray:
    """LayerNorm (Ba et al., 2016), or RMSNorm, which subtracts no mean (Zhang & Sennrich, 2019, equation 4)."""
    if kind == "rms":
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + EPSILON) * weights[f"{at}.gamma"]
    centred = x - x.mean(-1, keepdims=True)
    shift = weights.get(f"{at}.beta", 0.0)
    scaled = centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + EPSILON) * weights[f"{at}.gamma"]
    return np.asarray(scaled + shift)


def dense(x: np.ndarray, weights: Weights, at: str) -> np.ndarray:
    """x W + b."""
    return np.asarray(x @ weights[f"{at}.kernel"] + weights.get(f"{at}.bias", 0.0))


def turned(x_BHTK: np.ndarray) -> np.ndarray:
    """Rotary positions: every pair of numbers of a head, as a point of the plane, turned by its position's angle."""
    cosines, sines = positions.rotary(*x_BHTK.shape[-2:])
    first, second = np.split(x_BHTK, 2, axis=-1)
    return np.asarray(x_BHTK * cosines + np.concatenate([-second, first], -1) * sines)


def heads_of(x_BTD: np.ndarray, heads: int) -> np.ndarray:
    """(B, T, H * K) as (B, H, T, K)."""
    batch, length, width = x_BTD.shape
    return x_BTD.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def multi_head(
    x_BTD: np.ndarray,
    other_BSD: np.ndarray,
    weights: Weights,
    at: str,
    block: Block,
    seen: np.ndarray | None,
    maps: Maps | None = None,
) -> np.ndarray:
    """Attention of x to `other` (x itself, but for cross-attention) by several heads (Vaswani et al., section 3.2.2).

    Heads of queries share those of keys and values in groups (Ainslie et al., "GQA", 2023).
    """
    query = heads_of(dense(x_BTD, weights, f"{at}.query"), block.heads)
    key, value = (heads_of(dense(other_BSD, weights, f"{at}.{name}"), block.key_heads) for name in ("key", "value"))
    if block.normed_heads:
        query, key = (one / np.sqrt(np.mean(one**2, -1, keepdims=True) + EPSILON) for one in (query, key))
    if block.rotary:
        query, key = turned(query), turned(key)
    key, value = (np.repeat(one, block.heads // block.key_heads, axis=1) for one in (key, value))
    found = attention(query, key, value, seen, maps).swapaxes(1, 2).reshape(*x_BTD.shape[:2], -1)
    return dense(found, weights, f"{at}.output")


def mlp(x: np.ndarray, weights: Weights, at: str, activation: str) -> np.ndarray:
    """Two layers with GELU or the square of ReLU between them, or SwiGLU's three (Shazeer, "GLU variants", 2020)."""
    inner = dense(x, weights, f"{at}.inner")
    if activation == "gelu":
        erf = np.vectorize(math.erf, otypes=[np.float64])
        inner = 0.5 * inner * (1 + erf(inner / math.sqrt(2)))
    elif activation == "relu2":
        inner = np.maximum(inner, 0) ** 2
    else:
        inner = inner / (1 + np.exp(-inner)) * dense(x, weights, f"{at}.gate")
    return dense(inner, weights, f"{at}.outer")


def block_of(
    x: np.ndarray, weights: Weights, at: str, block: Block, seen: np.ndarray | None, maps: Maps | None = None
) -> np.ndarray:
    """x + attention, then + MLP, each behind a norm (pre-norm) or with the sum normalised (post-norm)."""
    first, second = (f"{at}.attention_norm", f"{at}.mlp_norm")
    if block.norm_place == "before":
        n = norm(x, weights, first, block.norm)
        x = x + multi_head(n, n, weights, f"{at}.attention", block, seen, maps)
        return np.asarray(x + mlp(norm(x, weights, second, block.norm), weights, f"{at}.mlp", block.activation))
    x = norm(x + multi_head(x, x, weights, f"{at}.attention", block, seen, maps), weights, first, block.norm)
    return norm(x + mlp(x, weights, f"{at}.mlp", block.activation), weights, second, block.norm)


def gpt(
    x_BT: np.ndarray, weights: Weights, decoder: Decoder, context: int | None = None, maps: Maps | None = None
) -> np.ndarray:
    """Logits (B, T, V) of the whole decoder. `context`: the length of the sequences that it was made for (None: T)."""
    length, kind, block, cap = x_BT.shape[1], decoder.positions, decoder.block, decoder.soft_cap
    h = weights["tokens.embeddings"][x_BT]
    if kind == "learned":
        h = h + weights["positions.embeddings"][:length]
    elif kind == "linear":
        h = h + positions.linear(context or length)[:length] * weights["positions.embeddings"]
    elif kind == "sinusoidal":
        h = h + positions.sinusoidal(length, block.width)
    for number in range(decoder.layers):
        h = block_of(h, weights, f"blocks.{number}", block, causal(length) if block.causal else None, maps)
    if block.norm_place == "before":
        h = norm(h, weights, "norm", block.norm)
    tied = weights["tokens.embeddings"].T
    logits = np.asarray(h @ weights.get("logits.kernel", tied))
    return logits if cap is None else cap * np.tanh(logits / cap)


def encoder_decoder(
    x_NW: np.ndarray, weights: Weights, stacks: Stacks, source: int, maps: Maps | None = None
) -> np.ndarray:
    """Logits (N, T, V) of targets so far behind their sources, side by side in x (N, S + T).

    `maps` gets the weights of each block's attention to the source, (N, H, T, S).
    """
    block, seen = stacks.block, (x_NW[:, :source] != PADDING)[:, None, None]
    embedded = weights["tokens.embeddings"][x_NW] * math.sqrt(block.width)  # Vaswani et al., section 3.4
    x, other = embedded[:, source:], embedded[:, :source]
    x, other = (placed(one, weights, name, stacks.positions) for one, name in ((x, "target"), (other, "source")))
    for number in range(stacks.layers):
        other = block_of(other, weights, f"encoder.{number}", stacks.encoder_block, seen)
    other = norm(other, weights, "encoder_norm", block.norm) if block.norm_place == "before" else other
    for number in range(stacks.layers):
        x = decoder_block_of(x, other, weights, f"decoder.{number}", block, seen, maps)
    x = norm(x, weights, "norm", block.norm) if block.norm_place == "before" else x
    return np.asarray(x @ weights.get("logits.kernel", weights["tokens.embeddings"].T))


def placed(x_NTD: np.ndarray, weights: Weights, name: str, kind: str) -> np.ndarray:
    """Embedded tokens plus their positions."""
    length, width = x_NTD.shape[1:]
    if kind == "learned":
        return x_NTD + weights[f"positions.{name}.embeddings"]
    if kind == "linear":
        return x_NTD + positions.linear(length) * weights[f"positions.{name}.embeddings"]
    return x_NTD + positions.sinusoidal(length, width) if kind == "sinusoidal" else x_NTD


def decoder_block_of(
    x: np.ndarray,
    other: np.ndarray,
    weights: Weights,
    at: str,
    block: Block,
    seen: np.ndarray,
    maps: Maps | None,
) -> np.ndarray:
    """x + attention to itself, + attention to `other`, + MLP (Vaswani et al., section 3.1)."""

    def attended(n: np.ndarray) -> np.ndarray:
        return multi_head(n, n, weights, f"{at}.attention", block, causal(n.shape[1]))

    def crossed(n: np.ndarray) -> np.ndarray:
        return multi_head(n, other, weights, f"{at}.cross", block, seen, maps)

    def inner(n: np.ndarray) -> np.ndarray:
        return mlp(n, weights, f"{at}.mlp", block.activation)

    for part, name in ((attended, "attention_norm"), (crossed, "cross_norm"), (inner, "mlp_norm")):
        if block.norm_place == "before":
            x = x + part(norm(x, weights, f"{at}.{name}", block.norm))
        else:
            x = norm(x + part(x), weights, f"{at}.{name}", block.norm)
    return x
