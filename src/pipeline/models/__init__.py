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
    """What a model is built for: the shape of one example, of its output, and what the example is made of.

    `vocabulary`: x holds integers below it (tokens); None: x holds real numbers.
    """

    x: tuple[int, ...]
    outputs: tuple[int, ...]
    vocabulary: int | None = None

    @property
    def image(self) -> tuple[int, int, int]:
        """Height, width and channels. Raises ValueError where an example is no image."""
        if len(self.x) != 3 or self.vocabulary is not None:
            what = f"shape {self.x}" + (" and hold tokens" if self.vocabulary is not None else "")
            raise ValueError(f"takes images (height, width, channels); the examples of this dataset have {what}")
        height, width, channels = self.x
        return height, width, channels

    @property
    def classes(self) -> int:
        """How many numbers the last axis of the output has: one logit for each class."""
        return self.outputs[-1]


def built(builder: Callable[[Shapes], Any], shapes: Shapes) -> Any:
    """What a model's builder makes of `shapes`. Its ValueError (a model too deep for the images) is a UserError."""
    try:
        return builder(shapes)
    except ValueError as error:
        message = " ".join(str(error).split())
        names_a_field = re.match(r"\w+=", message)
        raise UserError(f"model.{message}" if names_a_field else f"model: {message}") from error


def check_outputs(shape: Sequence[int | None], shapes: Shapes) -> None:
    """Refuse a model whose output is not what the task compares: a loss would crash on it, or take it."""
    if tuple(shape[1:]) != shapes.outputs:
        found, wanted = (", ".join(["N", *map(str, sizes)]) for sizes in (shape[1:], shapes.outputs))
        raise UserError(f"model: gives ({found}); the dataset's task needs ({wanted})")
