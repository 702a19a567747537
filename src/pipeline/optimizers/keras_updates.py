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


def decayed(average: Any, share: float) -> Any:
    """share * average, by what it loses: a share near 1 has few digits in bfloat16, 0.99 would be 0.988."""
    return average - (1 - share) * average


class Sgd(keras.optimizers.SGD):
    """SGD with torch's update: weight decay is an L2 term of the gradient, and the velocity is of gradients, without
    the learning rate, so that a schedule scales all of it."""

    def __init__(self, l2: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.l2 = l2

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        if self.l2 and self._use_weight_decay(variable):
            gradient = gradient + self.l2 * variable
        step = gradient
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            self.assign(velocity, decayed(velocity, self.momentum) + gradient)
            step = gradient + self.momentum * velocity if self.nesterov else velocity
        self.assign_sub(variable, rate * step)


class Adam(keras.optimizers.Adam):
    """Adam by algorithm 1 of Kingma and Ba: epsilon after the bias correction. AdamW where weight_decay is given."""

    def _apply_weight_decay(self, variables: Any) -> None:
        """Not by itself, as Keras does it: a decay of 0.002 rounds away in bfloat16. It is part of the update."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        dtype = variable.dtype
        rate = ops.cast(learning_rate, dtype)
        gradient = ops.cast(gradient, dtype)
        # In float64 at least float32: 1 - beta^t loses all its digits in half precision.
        exact = "float64" if dtype == "float64" else "float32"
        step = ops.cast(self.iterations + 1, exact)
        unbias_1 = ops.cast(1 - ops.power(ops.convert_to_tensor(self.beta_1, exact), step), dtype)
        unbias_2 = ops.cast(ops.sqrt(1 - ops.power(ops.convert_to_tensor(self.beta_2, exact), step)), dtype)
        index = self._get_variable_index(variable)
        mean, square = self._momentums[index], self._velocities[index]
        self.assign_add(mean, (gradient - mean) * (1 - self.beta_1))
        self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
        root = ops.sqrt(square) / unbias_2 + self.epsilon
        step = rate * (mean / unbias_1) / root
        if self.weight_decay and self._use_weight_decay(variable):
            step = step + rate * (self.weight_decay * variable)
        self.assign_sub(variable, step)


class RmsProp(keras.optimizers.RMSprop):
    """RMSprop with epsilon added to the root."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        index = self._get_variable_index(variable)
        square = self._velocities[index]
        self.assign_add(square, (ops.square(gradient) - square) * (1 - self.rho))
        step = gradient / (ops.sqrt(square) + self.epsilon)
        if self.momentum > 0:
            momentum = self._momentums[index]
            self.assign(momentum, decayed(momentum, self.momentum) + step)
            step = momentum
        self.assign_sub(variable, rate * step)


class Adagrad(keras.optimizers.Adagrad):
    """Adagrad with epsilon added to the root."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        for total in self._accumulators:
            total.assign(ops.full(total.shape, self.initial_accumulator_value, total.dtype))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        total = self._accumulators[self._get_variable_index(variable)]
        self.assign_add(total, ops.square(gradient))
        self.assign_sub(variable, rate * gradient / (ops.sqrt(total) + self.epsilon))


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
        rate = ops.cast(learning_rate, variable.dtype)
        index = self._get_variable_index(variable)  # the variable itself may be the framework's own
        if self.kinds[index] != MATRIX:
            super().update_step(gradient, variable, rate * self.share)
            return
        how = self.matrices
        gradient = ops.cast(gradient, variable.dtype)
        buffer = self._momentums[index]
        moved = decayed(buffer, how.momentum) + gradient
        self.assign(buffer, moved)
        update = gradient + how.momentum * moved if how.nesterov else moved
        dtype = keras.backend.standardize_dtype(variable.dtype)
        wide = ops.cast(update, "float64" if dtype == "float64" else "float32")  # 1e-8 is 0 in float16
        compute = self.compute if dtype == self.parameters else dtype  # of a layer with a dtype that differs
        products = ops.cast(wide / (ops.sqrt(ops.sum(ops.square(wide))) + TINY), compute)
        turned = ops.cast(orthogonal(products, ops.transpose, how.iterations), variable.dtype)
        inputs, outputs = variable.shape
        # Decay and update at once: see Adam.
        self.assign_sub(variable, rate * (reach(inputs, outputs) * turned + how.weight_decay * variable))
