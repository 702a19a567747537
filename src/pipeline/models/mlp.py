"""A multi-layer perceptron: Flatten, hidden Dense layers, Dense(classes) (row A5; with layer_dtypes, row A15)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pydantic import PositiveInt

from pipeline.contracts import Model
from pipeline.errors import plural, shown
from pipeline.models import Activation, LayerDtype, Rate, Shapes
from pipeline.spec import spec


@spec
class Mlp(Model):
    """`units` per hidden layer; `layer_dtypes`, if given, has a dtype (or null) for each Dense layer, the last too."""

    shared_start: ClassVar[bool] = True
    takes = "numbers"

    units: tuple[PositiveInt, ...] = (128,)
    activation: Activation = "relu"
    dropout: Rate = 0.0
    layer_dtypes: tuple[LayerDtype | None, ...] = ()

    def __post_init__(self) -> None:
        if self.layer_dtypes and len(self.layer_dtypes) != len(self.units) + 1:
            raise ValueError(
                f"layer_dtypes={shown(self.layer_dtypes)}: has {plural(len(self.layer_dtypes), 'dtype')}; "
                f"give one for each of the {len(self.units) + 1} Dense layers"
            )

    def _dtypes(self) -> tuple[LayerDtype | None, ...]:
        return self.layer_dtypes or (None,) * (len(self.units) + 1)

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        from pipeline.models import torch_layers as layers

        widths = [math.prod(shapes.numbers), *self.units]
        *hidden, last = self._torch_dtypes()
        stack: list[nn.Module] = [nn.Flatten()]
        for inputs, units, dtype in zip(widths, self.units, hidden, strict=False):
            stack += layers.dense(inputs, units, dtype)
            stack += [layers.activation(self.activation, in_place=True), *layers.dropout(self.dropout)]
        return nn.Sequential(*stack, *layers.dense(widths[-1], shapes.classes, last))

    def _torch_dtypes(self) -> tuple[LayerDtype | None, ...]:
        """A null behind a dtype is float32, as in Keras: the precision is fp32 (experiment/checks.py)."""
        given = self._dtypes()
        return tuple(dtype or ("float32" if any(given[:at]) else None) for at, dtype in enumerate(given))

    def keras(self, shapes: Shapes) -> Any:
        import keras

        from pipeline.models import keras_layers

        activation = keras_layers.activation(self.activation)
        *hidden, last = self._dtypes()
        stack = [keras.Input(shapes.numbers), keras.layers.Flatten()]
        for units, dtype in zip(self.units, hidden, strict=True):
            stack.append(keras.layers.Dense(units, activation=activation, dtype=dtype))
            if self.dropout:
                stack.append(keras.layers.Dropout(self.dropout))
        return keras.Sequential([*stack, keras.layers.Dense(shapes.classes, dtype=last)], name="mlp")
