"""The two-layer net in Keras, on the backend of this process."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import numpy as np

from pipeline.backends.shared.arrays import Arrays
from pipeline.backends.shared.two_layer import Form, Net


def in_float64() -> None:
    """Keras's own numbers in float64, in all of this process: a rate of 1e-6 in float32 is another rate."""
    keras.config.set_floatx("float64")


def sum_of_squares(y: Any, outputs: Any) -> Any:
    """The loss, a scalar, which Keras leaves as it is."""
    return keras.ops.sum(keras.ops.square(outputs - y))


class Layers(Form):
    """Dense layers, compile and train_on_batch, as a user of Keras has them: the step is compiled as Keras chooses."""

    name: ClassVar[str] = f"keras_{keras.backend.backend()}"
    how: ClassVar[str] = "Sequential, SGD, train_on_batch"

    def __init__(self, net: Net, arrays: Arrays) -> None:
        _, d_in = net.x.shape
        hidden, outputs = net.w2.shape
        self.model = keras.Sequential(
            [
                keras.Input((d_in,), dtype="float64"),
                keras.layers.Dense(hidden, activation="relu", use_bias=False),
                keras.layers.Dense(outputs, use_bias=False),
            ]
        )
        self.model.compile(optimizer=keras.optimizers.SGD(net.rate), loss=sum_of_squares)
        super().__init__(net, arrays)

    def start_from(self, w1: Any, w2: Any) -> None:
        for variable, value in zip(self.model.trainable_variables, (w1, w2), strict=True):
            variable.assign(value)

    def held(self) -> tuple[Any, Any]:
        first, second = (variable.value for variable in self.model.trainable_variables)
        return first, second

    def step(self) -> None:
        self.last = np.float64(self.model.train_on_batch(self.x, self.y))
