"""Models and a loss of a user's own, for in_backend: one model that normalizes, and some that cannot be trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from pipeline.contracts import Loss, Model
from pipeline.losses.cross_entropy import CrossEntropy
from pipeline.models import Shapes
from pipeline.spec import spec


@spec
class Normalized(Model):
    """A convolution and a Dense layer, each normalized over the batch; the frameworks' defaults for that differ."""

    shared_start: ClassVar[bool] = True

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        from pipeline.models import torch_layers as layers

        height, width, channels = shapes.image
        images = nn.BatchNorm2d(4, eps=1e-3, momentum=0.1)
        dense = nn.BatchNorm1d(shapes.classes, eps=1e-3, momentum=0.1)
        return nn.Sequential(
            layers.ChannelsFirst(),
            nn.Sequential(nn.Conv2d(channels, 4, 3, padding="same"), images),
            nn.Tanh(),
            layers.FlattenChannelsLast(),
            nn.Linear(height * width * 4, shapes.classes),
            dense,
        )

    def keras(self, shapes: Shapes) -> Any:
        import keras

        convolution = keras.layers.Conv2D(4, 3, padding="same")
        images, dense = (keras.layers.BatchNormalization(epsilon=1e-3, momentum=0.9) for _ in range(2))
        return keras.Sequential(
            [
                keras.Input(shapes.image),
                keras.Sequential([convolution, images]),
                keras.layers.Activation("tanh"),
                keras.layers.Dropout(1e-15),  # its generator's state is not a weight
                keras.layers.Flatten(),
                keras.layers.Dense(shapes.classes),
                dense,
            ]
        )


@spec
class Eighth(Model):
    """A softmax regression whose kernel is an eighth from the start; it says nothing of a shared one."""

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        dense = nn.Linear(math.prod(shapes.x), shapes.classes)
        nn.init.constant_(dense.weight, 0.125)
        return nn.Sequential(nn.Flatten(), dense)

    def keras(self, shapes: Shapes) -> Any:
        import keras

        dense = keras.layers.Dense(shapes.classes, kernel_initializer=keras.initializers.Constant(0.125))
        return keras.Sequential([keras.Input(shapes.x), keras.layers.Flatten(), dense])


@spec
class Unknown(Model):
    """A layer of the user's own with a tensor that no layout is known for, which starts at 0.5."""

    def torch(self, shapes: Shapes) -> Any:
        import torch
        from torch import nn

        class Stretched(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.strength = nn.Parameter(torch.full((3, 1), 0.5))

            def forward(self, x: Any) -> Any:
                return x * self.strength.sum()

        height, width, channels = shapes.image
        return nn.Sequential(nn.Flatten(), Stretched(), nn.Linear(height * width * channels, shapes.classes))

    def keras(self, shapes: Shapes) -> Any:
        import keras

        class Stretched(keras.layers.Layer):
            def build(self, _: Any) -> None:
                start = keras.initializers.Constant(0.5)
                self.strength = self.add_weight(name="strength", shape=(3, 1), initializer=start)

            def call(self, x: Any) -> Any:
                return x * keras.ops.sum(self.strength)

        layers = [keras.layers.Flatten(), Stretched(), keras.layers.Dense(shapes.classes)]
        return keras.Sequential([keras.Input(shapes.image), *layers])


@spec
class Twins(Model):
    """A layer that holds two weights of one name, which only Keras lets it."""

    def keras(self, shapes: Shapes) -> Any:
        import keras

        class Doubled(keras.layers.Layer):
            def build(self, _: Any) -> None:
                self.both = [self.add_weight(name="strength", shape=()) for _ in range(2)]

            def call(self, x: Any) -> Any:
                return x * self.both[0] + self.both[1]

        layers = [keras.layers.Flatten(), Doubled(name="doubled"), keras.layers.Dense(shapes.classes)]
        return keras.Sequential([keras.Input(shapes.image), *layers])


@spec
class Spare(Model):
    """It has a layer that the loss does not reach."""

    shared_start: ClassVar[bool] = True

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.flat = nn.Flatten()
                self.dense = nn.Linear(math.prod(shapes.x), shapes.classes)
                self.spare = nn.Linear(shapes.classes, 3)

            def forward(self, x: Any) -> Any:
                return self.dense(self.flat(x))

        return Net()

    def keras(self, shapes: Shapes) -> Any:
        import keras

        class Net(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.flat = keras.layers.Flatten()
                self.dense = keras.layers.Dense(shapes.classes)
                self.spare = keras.layers.Dense(3)

            def call(self, x: Any) -> Any:
                outputs = self.dense(self.flat(x))
                self.spare(outputs)
                return outputs

        return Net()


@spec
class Choosy(Model):
    """A builder that refuses every image."""

    message: str

    def torch(self, shapes: Shapes) -> Any:
        raise ValueError(self.message if shapes else "")

    def keras(self, shapes: Shapes) -> Any:
        return self.torch(shapes)


@spec
class Loud(Loss):
    """Cross-entropy 1e37 times over: finite in float32, and no update of it is."""

    volume: float = 1e37

    def torch(self) -> Callable[[Any, Any], Any]:
        quiet = CrossEntropy().torch()
        return lambda logits, labels: self.volume * quiet(logits, labels)

    def keras(self) -> Callable[[Any, Any], Any]:
        quiet = CrossEntropy().keras()
        return lambda logits, labels: self.volume * quiet(logits, labels)

    def numpy(self, logits: np.ndarray, labels: np.ndarray) -> float:
        return self.volume * CrossEntropy().numpy(logits, labels)
