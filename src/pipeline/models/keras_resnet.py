"""The residual net in Keras. Imported only by its model's Keras builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers, ops

from pipeline.models.keras_layers import BatchNormalization, Convolution


@keras.saving.register_keras_serializable("pipeline")
class Shortcut(layers.Layer):
    """(N, H, W, C) to every `stride`-th row and column of it, with `more` channels of zeros added."""

    def __init__(self, stride: int, more: int, **others: Any) -> None:
        super().__init__(**others)
        self.stride, self.more = stride, more

    def call(self, x_NHWC: Any) -> Any:
        """Of a batch."""
        seen = x_NHWC[:, :: self.stride, :: self.stride]
        return ops.pad(seen, [(0, 0), (0, 0), (0, 0), (0, self.more)])

    def of_stock(self) -> Any:
        """The same of Keras's own layers, for its file."""
        seen = layers.AveragePooling2D(1, self.stride, data_format="channels_last")
        # To a layer that expects (N, C, H, W) the channels are its columns.
        padded = layers.ZeroPadding2D(((0, 0), (0, self.more)), data_format="channels_first")
        return keras.Sequential([seen, padded], name=self.name)

    def get_config(self) -> dict[str, Any]:
        """What its builder takes."""
        return {**super().get_config(), "stride": self.stride, "more": self.more}


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
            plain = stride == 1 and filters == inputs
            shortcut = h_NHWC if plain else Shortcut(stride, filters - inputs, name=f"{name}.shortcut")(h_NHWC)
            h_NHWC = layers.ReLU()(layers.Add()([found, shortcut]))
    mean_NC = layers.GlobalAveragePooling2D(name="mean")(h_NHWC)
    return keras.Model(x_NHWC, layers.Dense(classes, name="logits")(mean_NC), name="resnet")
