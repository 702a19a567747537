"""A compiled keras.Model, its data (two clouds of points) and its callbacks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np


def model(width: int = 8) -> Any:
    layers = [keras.Input((4,)), keras.layers.Dense(width, activation="relu"), keras.layers.Dense(2)]
    made = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return made


def adaptive() -> Any:
    """Its optimizer keeps numbers for each weight."""
    made = model()
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


class Late(keras.Model):
    """Its weights are made by the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="relu")
        self.last = keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.last(self.hidden(x))


def late() -> Any:
    made = Late()
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def narrow() -> Any:
    """One layer has another dtype; of the normalization, which multiplies no matrices, nothing is said."""
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(8, dtype="bfloat16"),
        keras.layers.LayerNormalization(dtype="float64"),
    ]
    made = keras.Sequential([*layers, keras.layers.Dense(2)])
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return made


def by_class() -> Any:
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    made.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score()])
    return made


def one_hot() -> dict[str, Any]:
    return {name: (x, np.eye(2, dtype="float32")[y]) for name, (x, y) in arrays().items()}


def loose() -> Any:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def arrays() -> dict[str, Any]:
    y = np.arange(256) % 2
    x = (np.random.default_rng(0).normal(size=(256, 4)) + 4 * y[:, None]).astype("float32")
    return dict.fromkeys(("train", "validation", "test"), (x, y))


def batches() -> dict[str, Any]:
    import tensorflow as tf

    return {name: tf.data.Dataset.from_tensor_slices(pair).batch(32) for name, pair in arrays().items()}


def endless_test() -> dict[str, Any]:
    return {**batches(), "test": batches()["test"].repeat()}


def endless_validation() -> dict[str, Any]:
    return {**batches(), "validation": batches()["validation"].repeat()}


def listed() -> dict[str, Any]:
    return {"train": [*arrays()["train"]]}


def absent() -> dict[str, Any]:
    return {**arrays(), "validation": None}


def empty() -> dict[str, Any]:
    return {name: (x[:0], y[:0]) for name, (x, y) in arrays().items()}


def unequal() -> dict[str, Any]:
    x, y = arrays()["test"]
    return {**arrays(), "test": (x, y[1:])}


def from_one() -> dict[str, Any]:
    return {name: (x, y + 1) for name, (x, y) in arrays().items()}


class Broken(keras.layers.Layer):
    """Raises where it trains."""

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            raise ValueError("no such column")
        return x


def broken() -> Any:
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), Broken()])
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def still() -> Any:
    made = model()
    made.compile(keras.optimizers.SGD(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def misnamed() -> Any:
    made = model()
    made.compile("sgd", "sparse_categorical_crossentropy", metrics=["acuracy"])
    return made


class Damaged(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, batch: int) -> Any:
        if batch == 2:
            raise OSError("image 64")
        return tuple(one[:32] for one in arrays()["train"])


def damaged() -> dict[str, Any]:
    return {"train": Damaged()}


def callbacks() -> list[Any]:
    return [keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=100, start_from_epoch=1)]


class Dies(keras.callbacks.Callback):
    """Kills itself in its fifth epoch, where a file says so, once what was begun has been written."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        step = 8 * 4
        if self.model.optimizer.iterations.numpy() == step and list(Path.cwd().glob(f"die-{step}")):
            while not list(Path.cwd().glob("runs/*/checkpoints/step-*")):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)


def first_put_back() -> list[Any]:
    """Ends after the fifth epoch, with the weights of the first, which has the greatest loss."""
    return [keras.callbacks.EarlyStopping("val_loss", patience=4, mode="max", restore_best_weights=True)]


def best_kept() -> list[Any]:
    """The first epoch is the best one: it has the greatest loss."""
    best = keras.callbacks.EarlyStopping("val_loss", patience=6, mode="max", restore_best_weights=True)
    return [Dies(), best]
