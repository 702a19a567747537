"""The residual net in Keras. Imported only by its model's Keras builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers

from pipeline.models.keras_layers import BatchNormalization, Convolution


def shortcut(x_NHWC: Any, stride: int, more: int) -> Any:
    """Every `stride`-th row and column of x, with `more` channels of zeros added, by layers that Keras has."""
    seen = x_NHWC if stride == 1 else layers.AveragePooling2D(1, stride)(x_NHWC)
    # To a layer that expects (N, C, H, W) the channels are its columns.
    return layers.ZeroPadding2D(((0, 0), (0, more)), data_format="channels_first")(seen) if more else seen


def resnet(
    stages: Sequence[Sequence[tuple[int, int]]],
    image: tuple[int, int, int],
    classes: int,
    momentum: float,
    epsilon: float,
) -> Any:
    """A keras.Model from images (N, H, W, C) to logits (N, classes)."""

    def normed(x_NHWC: Any, filters: int, stride: int, name: str) -> Any:
        """A 3x3 convolution without a bias that keeps the image's size (but for its stride), normalised."""
        padded = layers.ZeroPadding2D(1)(x_NHWC)  # "same" would pad a stride of two on one side alone
        convolved = Convolution(filters, 3, stride, use_bias=False, name=f"{name}.convolution")(padded)
        return BatchNormalization(momentum=momentum, epsilon=epsilon, name=f"{name}.norm")(convolved)

    x_NHWC = keras.Input(image)
    h_NHWC = layers.ReLU()(normed(x_NHWC, stages[0][0][0], 1, "first"))
    for place, stage in enumerate(stages):
        for number, (filters, stride) in enumerate(stage):
            name, inputs = f"stages.{place}.{number}", h_NHWC.shape[-1]
            found = layers.ReLU()(normed(h_NHWC, filters, stride, f"{name}.first"))
            found = normed(found, filters, 1, f"{name}.second")
            h_NHWC = layers.ReLU()(layers.Add()([found, shortcut(h_NHWC, stride, filters - inputs)]))
    mean_NC = layers.GlobalAveragePooling2D(name="mean")(h_NHWC)
    return keras.Model(x_NHWC, layers.Dense(classes, name="logits")(mean_NC), name="resnet")
