"""The few Keras pieces that the models share. Imported only by a model's Keras builder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras


def wide_dtype(x: Any) -> str:
    """In which sums over x are taken: float32 at the least."""
    return "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"


@keras.saving.register_keras_serializable("pipeline")
def gelu(x: Any) -> Any:
    """x times the normal distribution function. TensorFlow's own rounds its square root of two to float32."""
    return 0.5 * x * (1 + keras.ops.erf(x * math.sqrt(0.5)))


@keras.saving.register_keras_serializable("pipeline")
class Convolution(keras.layers.Conv2D):
    """Conv2D. On JAX on a CPU it is computed as matrix products of image patches.

    XLA's CPU compiler has a fast convolution for the forward pass only. The gradients fall to a plain loop: a training
    step of the net of row D1 then takes 60 times as long (bench/README.md). TensorFlow has its own without XLA.
    """

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        """(N, H, W, C) to (N, H', W', filters)."""
        if keras.backend.backend() == "jax" and _is_on_cpu():
            return _by_products(inputs, kernel, self.padding, self.strides)
        return super().convolution_op(inputs, kernel)


def _is_on_cpu() -> bool:
    import jax

    device = jax.config.jax_default_device or jax.devices()[0]  # type: ignore[attr-defined]
    return bool(device.platform == "cpu")


def computed_once(x: Any) -> Any:
    """x, kept in memory by JAX on a CPU: for a stream to which one block after the other adds.

    XLA would put a cheap sum into each program that reads it. The gradient of such a stream is the sum of what all
    later blocks give back, so that each block would add them up anew: time that grows with the square of their number.
    """
    if keras.backend.backend() != "jax" or not _is_on_cpu():
        return x
    import jax

    return jax.lax.optimization_barrier(x)


def _by_products(inputs: Any, kernel: Any, padding: str, strides: Sequence[int]) -> Any:
    """The convolution as one product: patches (N, H', W', h * w * C) by the kernel (h * w * C, filters)."""
    high, wide = kernel.shape[:2]
    if padding == "same":  # as Keras pads at a stride of one: the odd one out behind
        around = [((size - 1) // 2, size // 2) for size in (high, wide)]
        inputs = keras.ops.pad(inputs, [(0, 0), *around, (0, 0)])
    rows, columns = inputs.shape[1] - high + 1, inputs.shape[2] - wide + 1
    down, right = strides
    parts = [inputs[:, i : i + rows : down, j : j + columns : right] for i in range(high) for j in range(wide)]
    return keras.ops.matmul(keras.ops.concatenate(parts, axis=-1), keras.ops.reshape(kernel, (-1, kernel.shape[-1])))


@keras.saving.register_keras_serializable("pipeline")
class BatchNormalization(keras.layers.BatchNormalization):
    """Whose moving variance is made of unbiased estimates, as torch's is.

    Ioffe and Szegedy, "Batch normalization", ICML 2015, algorithm 2, step 10. Keras's own takes a batch's own variance.
    """

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Of a batch; in training the moving statistics move."""
        kept = self.moving_variance * self.momentum  # read before the call, which assigns
        found = super().call(inputs, training=training, mask=mask)
        if training and self.trainable:
            count = keras.ops.cast(math.prod(keras.ops.shape(inputs)[:-1]), wide_dtype(kept))  # float16 ends at 65,504
            unbiased = keras.ops.cast(count / (count - 1), kept.dtype)
            self.moving_variance.assign(kept + (self.moving_variance - kept) * unbiased)
        return found


def activation(name: str) -> str | Callable[[Any], Any]:
    """What a Keras layer takes as its activation, for an activation's name."""
    return gelu if name == "gelu" else name
