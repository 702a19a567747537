"""Row A5 as the source's course writes it: model.fit on NumPy arrays. Arguments: Keras's backend, epochs."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

os.environ["KERAS_BACKEND"] = sys.argv[1]

import keras
from mnist import load


class Clock(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.seconds.append(time.perf_counter() - self.started)


def main() -> None:
    keras.utils.set_random_seed(0)
    x, y, x_test, y_test = load("fashion_mnist", 0)
    x, x_test = x / 255.0, x_test / 255.0
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    clock = Clock()
    model.fit(x, y, epochs=int(sys.argv[2]), batch_size=32, verbose=0, callbacks=[clock])
    accuracy = float(model.evaluate(x_test, y_test, verbose=0)[1])
    print(json.dumps({"images_per_s": len(y) / statistics.median(clock.seconds[1:]), "accuracy": accuracy}))


main()
