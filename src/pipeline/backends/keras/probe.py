"""Looking into a step of Keras's, on TensorFlow or JAX: its gradients, and the machine's rates at its dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.backends.keras.blocks import prepared
from pipeline.backends.keras.breakdown import step_breakdown as step_breakdown
from pipeline.backends.keras.fit import (
    BACKEND,
    engine_module,
    initial_model,
    keras,
    optimizer_of,
    runtime_settings,
    widened_loss,
)
from pipeline.backends.keras.net import called
from pipeline.backends.keras.updates import bounded
from pipeline.backends.shared.step_breakdown import NUMBERS, FirstStep, Machine, first_batch, in_memory
from pipeline.datasets import Data
from pipeline.loaders.batch_plan import Plan
from pipeline.machine.capability import Resolved
from pipeline.machine.precision import FORMATS, bytes_per_number
from pipeline.models import weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

SIDE = {"cpu": 1024, "gpu": 8192}


def first_step(experiment: Experiment, data: Data, resolved: Resolved) -> FirstStep:
    """The first step again, from the same weights and examples, without dropout."""
    with runtime_settings(experiment, resolved):
        model, *_ = initial_model(experiment, data.task.shapes, resolved)
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
        optimizer, loss = optimizer_of(experiment, model, resolved), widened_loss(experiment)
        rows = first_batch(experiment, data)
        x, y = map(keras.ops.convert_to_tensor, prepared(data, data.training(rows, 0)))

        def loss_of(outputs: Any) -> Any:
            return data.task.loss_of(loss, engine_module.OPS, engine_module.widened(outputs), y)

        value, gradients = (_by_tape if BACKEND == "tensorflow" else _by_jax)(model, optimizer, loss_of, x)
        scale = float(optimizer.scale_loss(1.0)) if FORMATS[resolved.precision].loss_scaling else 1.0
        named = {
            variable.path: np.asarray(keras.ops.convert_to_numpy(gradient), np.float64) / scale
            for variable, gradient in zip(model.trainable_variables, gradients, strict=True)
        }
        gradients, _ = bounded(
            gradients, experiment.training, scale if FORMATS[resolved.precision].loss_scaling else None
        )
        rate = Plan.of(experiment, len(data.train)).rate
        if rate is not None:
            getattr(optimizer, "inner_optimizer", optimizer)._learning_rate.assign(rate(0))
        optimizer.apply(gradients, model.trainable_variables)
        return FirstStep(value, named, weights.from_keras(model))


def _by_tape(model: Any, optimizer: Any, loss: Any, x: Any) -> tuple[float, list[Any]]:
    """Loss and gradients, scaled as the optimizer expects them, by TensorFlow."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = loss(model(x, training=True))
        scaled = optimizer.scale_loss(value)
    gradients = tape.gradient(scaled, [variable.value for variable in model.trainable_variables])
    return float(value), engine_module.dense(gradients, model.trainable_variables)


def _by_jax(model: Any, optimizer: Any, loss: Any, x: Any) -> tuple[float, list[Any]]:
    """Loss and gradients, scaled as the optimizer expects them, by JAX."""
    import jax

    trainable, fixed = (
        [v.value for v in group] for group in (model.trainable_variables, model.non_trainable_variables)
    )

    def scaled(trainable: Any) -> tuple[Any, Any]:
        outputs, _ = called(model, trainable, fixed, x, training=True)
        value = loss(outputs)
        return optimizer.scale_loss(value), value

    gradients, value = jax.grad(scaled, has_aux=True)(trainable)
    return float(value), gradients


class OnTensorFlow:
    """Multiplying by TensorFlow, and moving to a GPU, for `Machine.measure`."""

    def move(self, array: np.ndarray) -> Any:
        import tensorflow as tf

        return tf.identity(tf.constant(array))

    def product(self, a: Any, b: Any) -> Any:
        import tensorflow as tf

        return tf.matmul(a, b)

    def wait(self, result: Any) -> None:
        result[..., :1].numpy()


class OnJax:
    """Multiplying by JAX, and moving to a GPU, for `Machine.measure`."""

    def __init__(self) -> None:
        import jax

        self.product = jax.jit(jax.numpy.matmul)

    def move(self, array: np.ndarray) -> Any:
        import jax

        return jax.device_put(array, may_alias=False)

    def wait(self, result: Any) -> None:
        result.block_until_ready()


def machine(experiment: Experiment, resolved: Resolved) -> Machine:
    """The machine's rates at this precision's dtypes."""
    form, side = FORMATS[resolved.precision], SIDE[resolved.place.kind]
    with runtime_settings(experiment, resolved):
        square = keras.ops.cast(keras.random.normal((side, side), seed=0, dtype="float32"), form.compute)
        device = OnTensorFlow() if BACKEND == "tensorflow" else OnJax()
        in_host = resolved.place.kind == "cpu"
        move = in_memory(bytes_per_number(form.parameters)) if in_host else to_device(device, form.parameters)
        return Machine.measure(device, move, square)


def to_device(device: OnTensorFlow | OnJax, dtype: str) -> Callable[[], object]:
    """A copy of numbers from the host's memory to a GPU."""
    numbers = np.ones(NUMBERS, _numpy(dtype))
    return lambda: device.wait(device.move(numbers))


def _numpy(dtype: str) -> np.dtype[Any]:
    """NumPy's dtype of that name; bfloat16 is the one of ml_dtypes, which TensorFlow and JAX share."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
