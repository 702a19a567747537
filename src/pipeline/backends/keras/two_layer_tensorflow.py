"""The two-layer net in TensorFlow: three forms of one training, and three ways to run one step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import keras
import tensorflow as tf

from pipeline.backends.keras.arrays_tensorflow import Arrays
from pipeline.backends.keras.two_layer_keras import Layers, in_float64
from pipeline.backends.shared.two_layer import Form, Way


def loss_of(x: tf.Tensor, y: tf.Tensor, w1: Any, w2: Any) -> tf.Tensor:
    """The sum of squared errors; the weights may be tensors or variables."""
    return tf.reduce_sum(tf.square(tf.nn.relu(x @ w1) @ w2 - y))


class Tape(Form):
    """GradientTape, and an update in place."""

    name: ClassVar[str] = "tf_tape"
    how: ClassVar[str] = "variables, GradientTape"

    def start_from(self, w1: tf.Tensor, w2: tf.Tensor) -> None:
        with tf.device(self.x.device):
            self.variables = tf.Variable(w1), tf.Variable(w2)

    def held(self) -> tuple[Any, Any]:
        return self.variables

    def step(self) -> None:
        with tf.GradientTape() as tape:
            self.last = loss_of(self.x, self.y, *self.variables)
        gradients = tape.gradient(self.last, self.variables)
        for variable, gradient in zip(self.variables, gradients, strict=True):
            variable.assign_sub(self.rate * gradient)


class Optimizer(Form):
    """GradientTape, and an optimizer of Keras's."""

    name: ClassVar[str] = "tf_optimizer"
    how: ClassVar[str] = "GradientTape, keras.optimizers.SGD"

    def start_from(self, w1: tf.Tensor, w2: tf.Tensor) -> None:
        with tf.device(self.x.device):
            self.variables = keras.Variable(w1, dtype="float64"), keras.Variable(w2, dtype="float64")
            self.optimizer = keras.optimizers.SGD(self.rate)
            self.optimizer.build(self.variables)

    def held(self) -> tuple[Any, Any]:
        return self.variables[0].value, self.variables[1].value

    def step(self) -> None:
        with tf.GradientTape() as tape:
            self.last = loss_of(self.x, self.y, *self.held())
        self.optimizer.apply(tape.gradient(self.last, self.held()))


def step(x: tf.Tensor, y: tf.Tensor, w1: tf.Tensor, w2: tf.Tensor, rate: float) -> tuple[tf.Tensor, ...]:
    """The whole step, its gradients by GradientTape."""
    with tf.GradientTape() as tape:
        tape.watch((w1, w2))
        loss = loss_of(x, y, w1, w2)
    by_w1, by_w2 = tape.gradient(loss, (w1, w2))
    return loss, w1 - rate * by_w1, w2 - rate * by_w2


class Eager(Way):
    """Operation by operation, as Python calls them."""

    name: ClassVar[str] = "tf_eager"
    how: ClassVar[str] = "operation by operation"
    eager: ClassVar[bool] = True

    def build(self) -> Callable[..., Any]:
        return partial(step, rate=self.rate)


class Graph(Way):
    """A graph, traced at the first call."""

    saved_as: ClassVar[str | None] = "saved_model"
    xla: ClassVar[bool]

    def build(self) -> Callable[..., Any]:
        def graph(x: tf.Tensor, y: tf.Tensor, w1: tf.Tensor, w2: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return step(x, y, w1, w2, self.rate)

        self.function = tf.function(graph, jit_compile=self.xla)
        return self.function

    def save(self, folder: Path) -> None:
        module = tf.Module()
        module.step = self.function
        tf.saved_model.save(module, str(folder))


class Function(Graph):
    """tf.function, run by TensorFlow's own executor."""

    name: ClassVar[str] = "tf_function"
    how: ClassVar[str] = "tf.function"
    xla: ClassVar[bool] = False


class Xla(Graph):
    """tf.function, compiled by XLA."""

    name: ClassVar[str] = "tf_xla"
    how: ClassVar[str] = "tf.function, XLA"
    xla: ClassVar[bool] = True


FORMS: tuple[type[Form], ...] = (Tape, Optimizer, Layers)
WAYS: tuple[type[Way], ...] = (Eager, Function, Xla)


def arrays(place: str) -> Arrays:
    """TensorFlow's arrays on `place` (`cpu` or `gpu:0`), with Keras in float64."""
    in_float64()
    return Arrays(place)
