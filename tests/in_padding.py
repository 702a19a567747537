"""Rows of different lengths in one padded batch, and each by itself, in Keras, in its own process, for test_padding.py.

python tests/in_padding.py <tensorflow or jax> <found.pickle>

Found: by case, for each row what it gives within the batch, without its padding, and what it gives alone. In float64.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, LENGTH, LENGTHS = 32, 12, (5, 1, 12)
SOURCES, TARGET, VOCABULARY = (4, 1, 7), 5, 11
ATTENTION: dict[str, dict[str, Any]] = {
    "as it ships": {"key_heads": 4},
    "grouped keys": {"key_heads": 2},
    "rotary and normed heads": {"key_heads": 4, "rotary": True, "normed_heads": True},
}
MODELS: dict[str, dict[str, Any]] = {
    "as it ships": {},
    "of 2017": {"norm_place": "after", "bias": True},
    "rotary": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "normed_heads": True},
}
Rows = list[tuple[np.ndarray, np.ndarray]]


def main(backend: str) -> dict[str, Rows]:
    """See above."""
    os.environ["KERAS_BACKEND"] = backend
    os.environ["JAX_ENABLE_X64"] = "true"
    import keras
    from keras.src.backend.common import dtypes

    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"  # as pipeline.backends.keras.settings_jax does for fp64
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    layers = {f"attention, {name}": attention(**settings) for name, settings in ATTENTION.items()}
    return layers | {f"encoder_decoder, {name}": encoder_decoder(**settings) for name, settings in MODELS.items()}


def attention(**settings: Any) -> Rows:
    """Of a layer in which all positions see all that are no padding. What lies in the padding is large."""
    from pipeline.models.transformer import Block
    from pipeline.models.transformer.keras_parts import Attention

    layer = Attention(Block(width=WIDTH, heads=4, hidden=8, causal=False, **settings))
    x = np.random.default_rng(0).normal(size=(len(LENGTHS), LENGTH, WIDTH))
    layer.build(x.shape)
    seen = np.arange(LENGTH) < np.array(LENGTHS)[:, None]
    padded = np.asarray(layer(np.where(seen[..., None], x, 100.0), seen=seen[:, None, None]))
    alone = [np.asarray(layer(x[row : row + 1, :length]))[0] for row, length in enumerate(LENGTHS)]
    return [(padded[row, : len(one)], one) for row, one in enumerate(alone)]


def encoder_decoder(**settings: Any) -> Rows:
    """Logits of the model, whose weights are those of a model for sources of a row's own length."""
    from pipeline.models import PADDING, Shapes
    from pipeline.models.encoder_decoder import EncoderDecoder
    from pipeline.models.weights import from_keras, to_keras
    from pipeline.tasks.sequence_to_sequence import SPECIAL

    model = EncoderDecoder(layers=2, heads=2, width=8, **settings)

    def logits(x: np.ndarray) -> np.ndarray:
        source = x.shape[1] - TARGET
        net: Any = model.keras(Shapes((source + TARGET,), (TARGET, VOCABULARY), vocabulary=VOCABULARY))
        generator = np.random.default_rng(1)
        to_keras(net, {name: generator.normal(0, 0.4, one.shape) for name, one in from_keras(net).items()}, "test")
        return np.asarray(net(x))

    x = np.random.default_rng(0).integers(SPECIAL, VOCABULARY, (len(SOURCES), max(SOURCES) + TARGET))
    for row, length in enumerate(SOURCES):
        x[row, length : max(SOURCES)] = PADDING
    padded = logits(x)
    alone = [np.delete(x[row : row + 1], np.s_[length : max(SOURCES)], 1) for row, length in enumerate(SOURCES)]
    return [(padded[row], logits(one)[0]) for row, one in enumerate(alone)]


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(pickle.dumps(main(sys.argv[1])))
