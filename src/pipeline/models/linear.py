"""Softmax regression: one Dense layer from the pixels to the classes (row A9)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pipeline.contracts import Model
from pipeline.models import Shapes
from pipeline.spec import spec


@spec
class Linear(Model):
    """Flatten, Dense(classes)."""

    shared_start: ClassVar[bool] = True
    takes = "numbers"

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shapes.numbers), shapes.classes))

    def keras(self, shapes: Shapes) -> Any:
        import keras

        return keras.Sequential(
            [keras.Input(shapes.numbers), keras.layers.Flatten(), keras.layers.Dense(shapes.classes)], name="linear"
        )
