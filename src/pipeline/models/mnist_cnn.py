"""The two-convolution MNIST net of the AMP exercise (row B1): 3x3 convolutions, one max-pool, dropout, two Dense."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveInt

from pipeline.contracts import Model
from pipeline.models import Activation, Rate, Shapes
from pipeline.spec import spec


@spec
class MnistCnn(Model):
    """Unpadded 3x3 convolutions of `filters`, max-pool 2, dropout, Dense(`units`), dropout, Dense(classes)."""

    shared_start: ClassVar[bool] = True
    takes = "numbers"

    filters: tuple[PositiveInt, ...] = (32, 64)
    units: PositiveInt = 128
    activation: Activation = "relu"
    dropout_features: Rate = 0.25
    dropout_units: Rate = 0.5

    @property
    def pools_first(self) -> bool:
        """Whether the pool stands before the last activation, which then has a quarter of the work.

        For a ReLU result and gradients are the same to the bit. Others can round unequal elements to equal values (or
        are not monotone), and it matters which of them the pool takes.
        """
        return self.activation == "relu"

    def pooled(self, shapes: Shapes) -> tuple[int, int]:
        """Height and width after the convolutions (each takes off a border of one) and the pool."""
        border = 2 * len(self.filters)
        height, width = ((side - border) // 2 for side in shapes.image[:2])
        if min(height, width) < 1:
            raise ValueError(
                f"filters={list(self.filters)}: {len(self.filters)} unpadded 3x3 convolutions and a pool leave nothing "
                f"of {shapes.image[0]}x{shapes.image[1]} images; use at most {(min(shapes.image[:2]) - 2) // 2}"
            )
        return height, width

    def check_shapes(self, shapes: Shapes) -> None:
        self.pooled(shapes)

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        from pipeline.models import torch_layers as layers

        height, width = self.pooled(shapes)
        channels = [shapes.image[2], *self.filters]
        stack: list[nn.Module] = [layers.ChannelsFirst()]
        for inputs, filters in zip(channels, self.filters, strict=False):
            stack += [layers.convolution(inputs, filters, 3), layers.activation(self.activation, in_place=True)]
        stack.insert(len(stack) - self.pools_first, nn.MaxPool2d(2))
        stack += [layers.FlattenChannelsLast(), *layers.dropout(self.dropout_features)]
        stack += [
            *layers.dense(height * width * channels[-1], self.units),
            layers.activation(self.activation, in_place=True),
        ]
        return nn.Sequential(*stack, *layers.dropout(self.dropout_units), *layers.dense(self.units, shapes.classes))

    def keras(self, shapes: Shapes) -> Any:
        import keras

        from pipeline.models import keras_layers

        activation = keras_layers.activation(self.activation)
        self.pooled(shapes)
        stack = [keras.Input(shapes.image)]
        for filters in self.filters:
            stack += [keras_layers.Convolution(filters, 3), keras.layers.Activation(activation)]
        stack.insert(len(stack) - self.pools_first, keras.layers.MaxPooling2D(2))
        if self.dropout_features:
            stack.append(keras.layers.Dropout(self.dropout_features))
        stack += [keras.layers.Flatten(), keras.layers.Dense(self.units, activation=activation)]
        if self.dropout_units:
            stack.append(keras.layers.Dropout(self.dropout_units))
        return keras.Sequential([*stack, keras.layers.Dense(shapes.classes)], name="mnist_cnn")
