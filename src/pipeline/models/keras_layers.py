"""The few Keras pieces that the models share. Imported only by a model's Keras builder."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras


@keras.saving.register_keras_serializable("pipeline")
def gelu(x: Any) -> Any:
    """x times the normal distribution function. TensorFlow's own rounds its square root of two to float32."""
    return 0.5 * x * (1 + keras.ops.erf(x * math.sqrt(0.5)))


def activation(name: str) -> str | Callable[[Any], Any]:
    """What a Keras layer takes as its activation, for an activation's name."""
    return gelu if name == "gelu" else name
