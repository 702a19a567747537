"""Attention block by block beside the plain one, in Keras, in its own process, for test_blockwise.py.

python tests/in_blockwise.py <tensorflow or jax> <found.pickle>

Found: by case, what each of the two gives and its gradients of q, k and v, in float64.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

LENGTH, OTHER, BATCH, HEADS, HEAD = 600, 1100, 2, 2, 4  # blocks that do not divide them
PADDED = (700, 0)  # keys of each row of the batch that are no padding: of one none at all


def cases() -> dict[str, tuple[int, Any, bool]]:
    """Keys, what is seen of them, and whether in causal order."""
    generator = np.random.default_rng(0)
    padding = (np.arange(OTHER) < np.array(PADDED)[:, None])[:, None, None]
    any_at_all = generator.random((LENGTH, OTHER)) < 0.5
    any_at_all[[0, 5, LENGTH - 1]] = False
    return {
        "to all": (OTHER, None, False),
        "causal": (LENGTH, None, True),
        "padding": (OTHER, padding, False),
        "some queries see nothing": (OTHER, any_at_all, False),
    }


def main(backend: str) -> dict[str, Any]:
    """See above."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ["JAX_ENABLE_X64"] = "true"
    import keras
    from keras.src.backend.common import dtypes

    from pipeline.models.transformer.keras_blockwise import blockwise
    from pipeline.models.transformer.keras_parts import attention

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"  # as pipeline.backends.keras.settings_jax does for fp64
    keras.config.set_floatx("float64")
    generator = np.random.default_rng(1)
    found: dict[str, Any] = {}
    for name, (keys, seen, causal) in cases().items():
        qkv = [generator.normal(size=(BATCH, HEADS, length, HEAD)) for length in (LENGTH, keys, keys)]
        plainly = np.tril(np.ones((LENGTH, LENGTH), bool)) if causal else seen
        found[name] = [
            of(backend, partial(attention, seen=plainly), qkv),
            of(backend, partial(blockwise, seen=seen, causal=causal), qkv, compiled=True),
        ]
    return found


def of(backend: str, function: Callable[..., Any], qkv: list[np.ndarray], compiled: bool = False) -> list[np.ndarray]:
    """What attention gives, and the gradients of the sum of its squares; compiled as in a training, or not."""
    if backend == "jax":
        import jax

        def total(*given: Any) -> Any:
            found = function(*given)
            return (found**2).sum(), found

        gradient = jax.grad(total, (0, 1, 2), has_aux=True)
        gradients, found = (jax.jit(gradient) if compiled else gradient)(*qkv)
        return [np.asarray(one) for one in (found, *gradients)]
    import tensorflow as tf

    def gradient_of(*given: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(given)
            found = function(*given)
            total = tf.reduce_sum(found**2)
        return found, *tape.gradient(total, given)

    if compiled:
        gradient_of = tf.function(gradient_of, jit_compile=True)
    return [one.numpy() for one in gradient_of(*map(tf.constant, qkv))]


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(pickle.dumps(main(sys.argv[1])))
