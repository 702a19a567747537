"""Models: one file each, a spec with its torch and Keras builders side by side.

Images travel as (N, H, W, C) in every backend, so that a flattened image, and with it a Dense kernel, means the same in
each. Weights are exchanged in Keras's layout: a Dense kernel is (in, out), a convolution's is (height, width, in, out).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import UserError

Activation = Literal["relu", "tanh", "sigmoid", "gelu", "silu", "elu"]
LayerDtype = Literal["float16", "bfloat16", "float32", "float64"]


@dataclass(frozen=True)
class Shapes:
    """What a model is built for: one image as (height, width, channels), and the number of classes."""

    image: tuple[int, int, int]
    classes: int


def built(builder: Callable[[Shapes], Any], shapes: Shapes) -> Any:
    """What a model's builder makes of `shapes`. Its ValueError (a model too deep for the images) is a UserError."""
    try:
        return builder(shapes)
    except ValueError as error:
        message = " ".join(str(error).split())
        names_a_field = re.match(r"\w+=", message)
        raise UserError(f"model.{message}" if names_a_field else f"model: {message}") from error


def check_logits(shape: Sequence[int | None], classes: int) -> None:
    """Refuse a model whose output is not one logit for each class: a loss would crash on it, or take it."""
    if len(shape) != 2 or shape[1] != classes:
        found = ", ".join(["N", *map(str, shape[1:])])
        raise UserError(f"model: gives ({found}); the dataset has {classes} classes and needs logits (N, {classes})")
