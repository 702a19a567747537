"""What a step does with its gradients beside the optimizer's rule, in Keras's operations: for TensorFlow and JAX.

By torch's definitions (`torch.nn.utils.clip_grad_norm_`, `Average` of backends/torch/step.py), so that all agree.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops
from ml_dtypes import finfo

if TYPE_CHECKING:
    from pipeline.experiment.training import Training
    from pipeline.loaders.batch_plan import Block

SMALL = 1e-6  # keeps a norm of zero from dividing


def bounded(gradients: list[Any], training: Training, scale: Any) -> tuple[list[Any], Any]:
    """The gradients, clipped as asked, and their norm before that is clipped; None where it is not measured.

    `scale`: the factor in the gradients where the loss is scaled (else None). It stays in them, not in the norm.
    """
    if training.clip_value is not None:
        gradients = [_clamped(g, training.clip_value, scale) for g in gradients]
    if not training.needs_norm:
        return gradients, None
    double = any(keras.backend.standardize_dtype(g.dtype) == "float64" for g in gradients)
    wide = [ops.cast(g, "float64" if double else "float32") for g in gradients]  # layers may have dtypes of their own
    norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in wide))
    if scale is not None:
        norm = norm / ops.cast(scale, norm.dtype)
    if training.clip_norm is not None:
        factor = ops.minimum(training.clip_norm / (norm + SMALL), 1.0)
        gradients = [g * ops.cast(factor, g.dtype) for g in gradients]
    return gradients, norm


def moved_average(average: Any, weight: Any, decay: float) -> Any:
    """decay * average + (1 - decay) * weight, in the average's dtype."""
    return average + (ops.cast(weight, average.dtype) - average) * (1 - decay)


def control_of(block: Block, padded_to: int) -> dict[str, np.ndarray]:
    """What a block's steps take beside the batches, (padded_to,) each; empty where each batch is a step as usual."""
    found: dict[str, np.ndarray] = {}
    if block.plan.accumulate > 1:
        found |= {"share": block.shares, "update": block.updates}
    rates = block.rates
    if rates is not None:
        found["rate"] = rates
    return {name: np.concatenate([each, np.zeros(padded_to - len(each), each.dtype)]) for name, each in found.items()}


def _clamped(gradient: Any, most: float, scale: Any) -> Any:
    """Each number within +-most. convert_to_tensor: ops.cast takes a number through float32 on TensorFlow.

    Where the loss is scaled, what has overflowed stays so: it tells the optimizer to skip the step.
    """
    beyond = most > float(finfo(keras.backend.standardize_dtype(gradient.dtype)).max)  # NumPy warns of its overflow
    bound = ops.convert_to_tensor(math.inf if beyond else most, gradient.dtype)
    if scale is None:
        return ops.minimum(ops.maximum(gradient, -bound), bound)
    bound = bound * ops.cast(scale, gradient.dtype)
    return ops.where(ops.isfinite(gradient), ops.minimum(ops.maximum(gradient, -bound), bound), gradient)
