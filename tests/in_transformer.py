"""Computes a transformer and its attention in Keras, in its own process, for test_transformer.py.

python tests/in_transformer.py <tensorflow or jax> <asked.pickle> <found.pickle>

Asked: for each kind the settings of model=gpt and its weights; tokens; q, k, v and a mask. Everything in float64.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(backend: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Logits by kind; attention under a mask with its gradients; several heads beside Keras's own layer."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ["JAX_ENABLE_X64"] = "true"
    import keras
    from keras.src.backend.common import dtypes

    from pipeline.models.gpt import Gpt
    from pipeline.models.transformer import keras_parts
    from pipeline.models.weights import to_keras

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"  # as pipeline.backends.keras.settings_jax does for fp64
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    logits = {}
    for kind, (settings, values) in asked["kinds"].items():
        net: Any = Gpt(**settings).keras(asked["shapes"])
        to_keras(net, values, kind)
        logits[kind] = np.asarray(net.predict_on_batch(asked["tokens"]))
    q, k, v = asked["qkv"]
    found, gradients = with_gradients(backend, keras_parts, (q, k, v), asked["seen"])
    return {"logits": logits, "attention": found, "gradients": gradients, "heads": heads(keras, keras_parts, asked)}


def with_gradients(backend: str, parts: Any, qkv: tuple[np.ndarray, ...], seen: np.ndarray) -> tuple[Any, list[Any]]:
    """What attention gives, and the gradients of the sum of its squares."""
    if backend == "jax":
        import jax

        def total(*given: Any) -> Any:
            return (parts.attention(*given, seen) ** 2).sum()

        return np.asarray(parts.attention(*qkv, seen)), [np.asarray(one) for one in jax.grad(total, (0, 1, 2))(*qkv)]
    import tensorflow as tf

    given = [tf.Variable(one) for one in qkv]
    with tf.GradientTape() as tape:
        found = parts.attention(*given, seen)
        total = tf.reduce_sum(found**2)
    return found.numpy(), [one.numpy() for one in tape.gradient(total, given)]


def heads(keras: Any, parts: Any, asked: dict[str, Any]) -> list[tuple[Any, Any]]:
    """(ours, Keras's MultiHeadAttention) from the same weights: to itself, to another sequence, and under a mask."""
    block, x, other = asked["block"], asked["x"], asked["other"]
    ours = parts.Attention(block)
    theirs = keras.layers.MultiHeadAttention(block.heads, block.head, use_bias=True)
    ours.build(x.shape)
    theirs.build(x.shape, x.shape)
    generator = np.random.default_rng(0)
    names = ("query", "key", "value", "output")
    for name in names:
        mine = getattr(ours, "output_layer" if name == "output" else name)
        kernel, bias = (generator.normal(0, 0.3, weight.shape) for weight in mine.weights)
        mine.set_weights([kernel, bias])
        copied = getattr(theirs, f"_{name}_dense")
        copied.set_weights([kernel.reshape(copied.weights[0].shape), bias.reshape(copied.weights[1].shape)])
    seen = asked["seen_of_x"]
    plain = {"return_attention_scores": True}  # not JAX's fused operation, whose softmax is in float32
    pairs = (
        (ours(x), theirs(x, x, **plain)[0]),
        (ours(x, other), theirs(x, other, **plain)[0]),
        (ours(x, None, seen), theirs(x, x, attention_mask=seen[None], **plain)[0]),
    )
    return [(np.asarray(one), np.asarray(two)) for one, two in pairs]


if __name__ == "__main__":
    answer = main(sys.argv[1], pickle.loads(Path(sys.argv[2]).read_bytes()))
    Path(sys.argv[3]).write_bytes(pickle.dumps(answer))
