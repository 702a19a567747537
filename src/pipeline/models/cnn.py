"""A small convolutional net: convolution, max-pool, activation for each of `filters`, then Dense(classes) (row D1)."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import PositiveInt

from pipeline.contracts import Model
from pipeline.models import Activation, Rate, Shapes
from pipeline.spec import spec


@spec
class Cnn(Model):
    """Convolutions keep the image's size; each 2x2 max-pool halves it (an odd last row or column is dropped)."""

    shared_start: ClassVar[bool] = True
    takes = "numbers"

    filters: tuple[PositiveInt, ...] = (32, 64)
    kernel_size: PositiveInt = 5
    activation: Activation = "relu"
    dropout: Rate = 0.0

    def pooled(self, shapes: Shapes) -> tuple[int, int]:
        """Height and width after the last pool. Raises ValueError where nothing of the image would be left."""
        height, width, _ = shapes.image
        shrink = 2 ** len(self.filters)
        if min(height, width) < shrink:
            pools = "1 pool leaves" if len(self.filters) == 1 else f"{len(self.filters)} pools leave"
            raise ValueError(
                f"filters={list(self.filters)}: {pools} nothing of {height}x{width} images; use at most "
                f"{min(height, width).bit_length() - 1}"
            )
        return height // shrink, width // shrink

    def check_shapes(self, shapes: Shapes) -> None:
        self.pooled(shapes)

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        from pipeline.models import torch_layers as layers

        height, width = self.pooled(shapes)
        channels = [shapes.image[2], *self.filters]
        stack: list[nn.Module] = [layers.ChannelsFirst()]
        for inputs, filters in zip(channels, self.filters, strict=False):
            stack += [
                layers.convolution(inputs, filters, self.kernel_size, padding="same"),
                nn.MaxPool2d(2),
                layers.activation(self.activation, in_place=True),
            ]
        stack += [layers.FlattenChannelsLast(), *layers.dropout(self.dropout)]
        return nn.Sequential(*stack, *layers.dense(height * width * channels[-1], shapes.classes))

    def keras(self, shapes: Shapes) -> Any:
        import keras

        from pipeline.models import keras_layers

        activation = keras_layers.activation(self.activation)
        self.pooled(shapes)
        stack = [keras.Input(shapes.image)]
        for filters in self.filters:
            stack += [
                keras_layers.Convolution(filters, self.kernel_size, padding="same"),
                keras.layers.MaxPooling2D(2),
                keras.layers.Activation(activation),
            ]
        stack.append(keras.layers.Flatten())
        if self.dropout:
            stack.append(keras.layers.Dropout(self.dropout))
        return keras.Sequential([*stack, keras.layers.Dense(shapes.classes)], name="cnn")
