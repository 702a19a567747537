"""Keras optimizers with torch's (and the papers') update where Keras's own differs.

Keras's Adam adds epsilon before the bias correction ("epsilon hat"), which makes it up to 30 times larger in the first
steps; its RMSprop and Adagrad add epsilon under the root; its SGD's velocity holds the rates of its steps. With those,
the same settings would train two different nets.
Settings meet tensors as Python numbers or through convert_to_tensor: ops.cast, which Keras's SGD uses, takes a number
through float32 on TensorFlow. Imported only by an optimizer's Keras builder.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from pipeline.optimizers.orthogonal import MATRIX, TINY, Matrices, orthogonal, reach


def in_full(variable: Any, *numbers: Any) -> list[Any]:
    """Numbers of an update in float32 at least, as torch has them; what is kept is rounded when it is assigned.

    A setting has few digits in bfloat16, 0.99 is 0.988, and float16 holds no square above 65,504.
    """
    dtype = "float64" if keras.backend.standardize_dtype(variable.dtype) == "float64" else "float32"
    return [ops.cast(number, dtype) for number in numbers]


def times(factor: float, x: Any) -> Any:
    """factor * x in the dtype of x, to which Keras would round the factor first."""
    (full,) = in_full(x, x)
    return ops.cast(factor * full, x.dtype)


class Sgd(keras.optimizers.SGD):
    """SGD with torch's update: weight decay is an L2 term of the gradient, and the velocity is of gradients, without
    the learning rate, so that a schedule scales all of it."""

    def __init__(self, l2: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.l2 = l2

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate, gradient, weight = in_full(variable, learning_rate, gradient, variable)
        if self.l2 and self._use_weight_decay(variable):
            gradient = gradient + self.l2 * weight
        step = gradient
        if self.momentum:
            buffer = self.momentums[self._get_variable_index(variable)]
            (velocity,) = in_full(variable, buffer)
            velocity = self.momentum * velocity + gradient
            self.assign(buffer, velocity)
            step = gradient + self.momentum * velocity if self.nesterov else velocity
        self.assign(variable, weight - rate * step)


class Adam(keras.optimizers.Adam):
    """Adam by algorithm 1 of Kingma and Ba: epsilon after the bias correction. AdamW where weight_decay is given."""

    def _apply_weight_decay(self, variables: Any) -> None:
        """Not by itself, as Keras does it: a decay of 0.002 rounds away in bfloat16. It is part of the update."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        kept = self._momentums[index], self._velocities[index]
        rate, gradient, weight, mean, square = in_full(variable, learning_rate, gradient, variable, *kept)
        (number,) = in_full(variable, self.iterations + 1)
        unbias_1 = 1 - ops.power(ops.convert_to_tensor(self.beta_1, number.dtype), number)
        unbias_2 = ops.sqrt(1 - ops.power(ops.convert_to_tensor(self.beta_2, number.dtype), number))
        mean = mean + (gradient - mean) * (1 - self.beta_1)
        square = self.beta_2 * square + (1 - self.beta_2) * ops.square(gradient)
        self.assign(kept[0], mean)
        self.assign(kept[1], square)
        step = rate * (mean / unbias_1) / (ops.sqrt(square) / unbias_2 + self.epsilon)
        if self.weight_decay and self._use_weight_decay(variable):
            step = step + rate * (self.weight_decay * weight)
        self.assign(variable, weight - step)


class RmsProp(keras.optimizers.RMSprop):
    """RMSprop with epsilon added to the root."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        kept = self._velocities[index]
        rate, gradient, weight, square = in_full(variable, learning_rate, gradient, variable, kept)
        square = self.rho * square + (1 - self.rho) * ops.square(gradient)
        self.assign(kept, square)
        step = gradient / (ops.sqrt(square) + self.epsilon)
        if self.momentum > 0:
            buffer = self._momentums[index]
            (momentum,) = in_full(variable, buffer)
            step = self.momentum * momentum + step
            self.assign(buffer, step)
        self.assign(variable, weight - rate * step)


class Adagrad(keras.optimizers.Adagrad):
    """Adagrad with epsilon added to the root."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        for total in self._accumulators:
            total.assign(ops.full(total.shape, self.initial_accumulator_value, total.dtype))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        kept = self._accumulators[self._get_variable_index(variable)]
        rate, gradient, weight, total = in_full(variable, learning_rate, gradient, variable, kept)
        total = total + ops.square(gradient)
        self.assign(kept, total)
        self.assign(variable, weight - rate * gradient / (ops.sqrt(total) + self.epsilon))


class Muon(Adam):
    """The matrices' momentum made orthogonal; the other weights by Adam.

    `kinds`: of each variable, in the order in which they are built.
    """

    def __init__(self, matrices: Matrices, share: float, **adam: Any) -> None:
        """`share`: Adam's rate as a part of the matrices'. `adam`: its settings."""
        super().__init__(**adam)
        self.matrices, self.share = matrices, share
        self.compute, self.parameters = keras.config.dtype_policy().compute_dtype, keras.config.floatx()
        self.kinds: list[str] = []

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)  # the variable itself may be the framework's own
        buffer = self._momentums[index]
        rate, gradient, weight, momentum = in_full(variable, learning_rate, gradient, variable, buffer)
        if self.kinds[index] != MATRIX:
            super().update_step(gradient, variable, rate * self.share)
            return
        how = self.matrices
        momentum = how.momentum * momentum + gradient
        self.assign(buffer, momentum)
        update = gradient + how.momentum * momentum if how.nesterov else momentum
        dtype = keras.backend.standardize_dtype(variable.dtype)
        compute = self.compute if dtype == self.parameters else dtype  # of a layer with a dtype that differs
        products = ops.cast(update / (ops.sqrt(ops.sum(ops.square(update))) + TINY), compute)
        (turned,) = in_full(variable, orthogonal(products, ops.transpose, how.iterations, times))
        inputs, outputs = variable.shape
        # Decay and update at once: see Adam.
        self.assign(variable, weight - rate * (reach(inputs, outputs) * turned + how.weight_decay * weight))
