"""The small GPT of gpt_plain.py from Keras's layers, by `model.fit`. Arguments: Keras's backend, steps, maybe `xla`.

Keras's defaults are a step a call, compiled by XLA on JAX and not on TensorFlow without a GPU; with `xla`, 20 steps a
call, compiled by XLA.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["KERAS_BACKEND"] = sys.argv[1]

import keras
import numpy as np
from corpus import CONTEXT, load, sequences

BATCH, LAYERS, HEADS, WIDTH = 12, 4, 4, 128
UNTIMED = 20


class Clock(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch + 1 == UNTIMED:
            self.started = time.perf_counter()

    def on_train_end(self, logs: object = None) -> None:
        self.seconds = time.perf_counter() - self.started


class Embedded(keras.layers.Layer):
    """Tokens and positions; `back` is the product with the same matrix."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.tokens = keras.layers.Embedding(vocabulary, WIDTH, embeddings_initializer=normal)
        self.positions = keras.layers.Embedding(CONTEXT, WIDTH, embeddings_initializer=normal)

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return self.tokens(x) + self.positions(keras.ops.arange(CONTEXT))

    def back(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return keras.ops.matmul(x, keras.ops.transpose(self.tokens.embeddings))


class Gpt(keras.Model):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        layers = keras.layers
        self.embedded = Embedded(vocabulary)
        self.norms = [layers.LayerNormalization(center=False) for _ in range(2 * LAYERS + 1)]
        self.attention = [layers.MultiHeadAttention(HEADS, WIDTH // HEADS, use_bias=False) for _ in range(LAYERS)]
        self.wide = [layers.Dense(4 * WIDTH, "gelu", use_bias=False) for _ in range(LAYERS)]
        self.narrow = [layers.Dense(WIDTH, use_bias=False) for _ in range(LAYERS)]

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        hidden = self.embedded(x)
        for number in range(LAYERS):
            normed = self.norms[2 * number](hidden)
            hidden = hidden + self.attention[number](normed, normed, use_causal_mask=True)
            hidden = hidden + self.narrow[number](self.wide[number](self.norms[2 * number + 1](hidden)))
        return self.embedded.back(self.norms[-1](hidden))


def main(steps: int, xla: bool) -> None:
    keras.utils.set_random_seed(0)
    corpus = load()
    first = np.random.default_rng(0).integers(len(corpus.training) - CONTEXT, size=steps * BATCH)
    windows = corpus.training[first[:, None] + np.arange(CONTEXT + 1)].astype(np.int32)
    schedule = keras.optimizers.schedules.CosineDecay(1e-5, steps - 100, 0.1, warmup_target=1e-3, warmup_steps=100)
    optimizer = keras.optimizers.AdamW(schedule, beta_2=0.99, weight_decay=0.1, global_clipnorm=1.0)
    model = Gpt(len(corpus.lengths))
    how = {"jit_compile": True, "steps_per_execution": UNTIMED} if xla else {}
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **how)
    clock = Clock()
    model.fit(windows[:, :-1], windows[:, 1:], batch_size=BATCH, epochs=1, verbose=0, shuffle=False, callbacks=[clock])
    x, y = (part.astype(np.int32) for part in sequences(corpus.validation))
    loss = float(model.evaluate(x, y, batch_size=100, verbose=0))
    tokens = (steps - UNTIMED) * BATCH * CONTEXT
    print(json.dumps({"tokens_per_s": tokens / clock.seconds, "validation_loss": loss, "seconds": clock.seconds}))


main(int(sys.argv[2]), sys.argv[3:] == ["xla"])
