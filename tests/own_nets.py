"""Models as users bring them: attention, recurrent layers, bare parameters, weight norm, other people's packages."""

from __future__ import annotations

from typing import Any, ClassVar

from pipeline.contracts import Model
from pipeline.models import Shapes
from pipeline.spec import spec


@spec
class Anything(Model):
    """A bit of everything, nested: an image's rows are a sequence of tokens."""

    def torch(self, shapes: Shapes) -> Any:
        import torch
        from torch import nn
        from torch.nn.utils.parametrizations import spectral_norm, weight_norm

        height, width, _ = shapes.image

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.LayerNorm(16)
                self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
                self.mlp = nn.ModuleDict(
                    {"up": weight_norm(nn.Linear(16, 32)), "down": spectral_norm(nn.Linear(32, 16))}
                )

            def forward(self, x_BTD: Any) -> Any:
                y_BTD = self.norm(x_BTD)
                x_BTD = x_BTD + self.attend(y_BTD, y_BTD, y_BTD, need_weights=False)[0]
                return x_BTD + self.mlp["down"](self.mlp["up"](x_BTD).relu())

        class Net(nn.Module):
            steps: Any

            def __init__(self) -> None:
                super().__init__()
                self.place = nn.Parameter(torch.randn(height, 16) / 10)
                self.scale = nn.Parameter(torch.tensor(1.5))
                self.register_buffer("steps", torch.arange(height))
                self.embed = nn.Embedding(17, 4)
                self.enter = nn.Linear(width * 4, 16)
                self.enter.register_parameter("kernel", nn.Parameter(torch.ones(1)))  # the common name of its weight
                self.blocks = nn.ModuleList(Block() for _ in range(2))
                self.lstm = nn.LSTM(16, 8, num_layers=2, bidirectional=True, batch_first=True)
                self.gru = nn.GRU(16, 8, batch_first=True)
                self.bilinear = nn.Bilinear(8, 8, 6)
                self.wider = nn.ConvTranspose1d(6, 3, 1)
                self.lazy = nn.LazyLinear(12)
                self.heads = nn.ParameterList([nn.Parameter(torch.randn(12, shapes.classes) / 10)])

            def forward(self, x: Any) -> Any:
                x = self.embed((x[..., 0] * 16).long()).flatten(2)
                x = self.enter(x) * self.scale * self.enter.kernel + self.place[self.steps]
                for block in self.blocks:
                    x = block(x)
                x = self.gru(self.lstm(x)[0])[0][:, -1]
                return self.lazy(self.wider(self.bilinear(x, x)[..., None]).flatten(1)) @ self.heads[0]

        return Net()

    def keras(self, shapes: Shapes) -> Any:
        import keras
        from keras import layers, ops

        height, width, _ = shapes.image

        class Block(layers.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.norm = layers.LayerNormalization()
                self.attend = layers.MultiHeadAttention(2, 8)
                self.mlp = {"up": layers.Dense(32), "down": layers.Dense(16)}

            def call(self, x_BTD: Any) -> Any:
                y_BTD = self.norm(x_BTD)
                x_BTD = x_BTD + self.attend(y_BTD, y_BTD)
                return x_BTD + self.mlp["down"](ops.relu(self.mlp["up"](x_BTD)))

        class Net(keras.Model):
            def __init__(self, of: Any) -> None:  # what Keras cannot put into a config
                super().__init__()
                self.place = self.add_weight(name="place", shape=(height, 16), initializer="normal")
                self.bare = keras.Variable(1.5, name="bare")
                self.embed = layers.Embedding(17, 4)
                self.enter = layers.Dense(16)
                self.blocks = [Block() for _ in range(2)]
                self.lstm = layers.Bidirectional(layers.LSTM(8, return_sequences=True))
                self.gru = layers.GRU(8)
                self.heads = {"first": [layers.Dense(12, name="one"), layers.Dropout(0.1)], "last": layers.Dense(of)}

            def call(self, x: Any) -> Any:
                x = ops.reshape(self.embed(ops.cast(x[..., 0] * 16, "int32")), (-1, height, width * 4))
                x = self.enter(x) * self.bare + self.place
                for block in self.blocks:
                    x = block(x)
                x = self.gru(self.lstm(x))
                for layer in self.heads["first"]:
                    x = layer(x)
                return self.heads["last"](x)

        return Net(shapes.classes)


@spec
class Tcn(Model):
    """A temporal convolutional network of the package pytorch-tcn, which normalizes its weights."""

    def torch(self, shapes: Shapes) -> Any:
        from pytorch_tcn import TCN
        from torch import nn

        height, width, _ = shapes.image
        return nn.Sequential(
            nn.Flatten(2),
            TCN(width, [8, 8], kernel_size=2, dilations=[1, 2], input_shape="NLC"),
            nn.Flatten(),
            nn.Linear(height * 8, shapes.classes),
        )


@spec
class Liquid(Model):
    """A closed-form continuous-time network of the package ncps: a recurrent cell of its authors' own."""

    def torch(self, shapes: Shapes) -> Any:
        from ncps.torch import CfC
        from torch import nn

        class Last(nn.Module):
            def forward(self, found: Any) -> Any:
                return found[0][:, -1]

        return nn.Sequential(nn.Flatten(2), CfC(shapes.image[1], 16), Last(), nn.Linear(16, shapes.classes))

    def keras(self, shapes: Shapes) -> Any:
        import keras
        from ncps.keras import CfC

        height, width, _ = shapes.image
        rows = keras.layers.Reshape((height, width))
        return keras.Sequential([keras.Input(shapes.x), rows, CfC(16), keras.layers.Dense(shapes.classes)])


@spec
class ChannelsFirst(Model):
    """A convolution of (N, C, H, W)."""

    layout: ClassVar = "channels_first"

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        _, _, channels = shapes.image
        pooled = (nn.AdaptiveAvgPool2d(4), nn.Flatten())
        return nn.Sequential(nn.Conv2d(channels, 8, 3), nn.ReLU(), *pooled, nn.Linear(128, shapes.classes))

    def keras(self, shapes: Shapes) -> Any:
        import keras
        from keras import layers

        height, width, channels = shapes.image
        convolution = layers.Conv2D(8, 3, activation="relu", data_format="channels_first")
        end = [layers.Flatten(), layers.Dense(shapes.classes)]
        return keras.Sequential([keras.Input((channels, height, width)), convolution, *end])


@spec
class Wrong(Model):
    """What cannot be trained as it is, by name."""

    how: str = ""

    def torch(self, shapes: Shapes) -> Any:
        import pytorch_lightning
        from torch import nn

        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(64, 4), nn.Bilinear(4, 4, 10)

            def forward(self, x: Any) -> Any:
                y = self.first(x.flatten(1))
                return self.last(y, y)

        class Pair(nn.Module):
            def forward(self, x: Any) -> Any:
                return x, x

        made: dict[str, Any] = {
            "first": lambda: ChannelsFirst().torch(shapes),
            "narrow": lambda: nn.Linear(3, 10),
            "lightning": pytorch_lightning.LightningModule,
            "pair": Pair,
            "bilinear": Twice,
            "none": lambda: None,
            "heads": lambda: nn.MultiheadAttention(64, 3),
            "frozen": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False),
        }
        return made[self.how]()

    def keras(self, shapes: Shapes) -> Any:
        import keras

        class Pair(keras.Model):
            def call(self, x: Any) -> Any:
                return x, x

        if self.how in ("kernels", "activity"):
            by = f"{'kernel' if self.how == 'kernels' else 'activity'}_regularizer"
            regularized = keras.layers.Dense(10, name="last", **{by: keras.regularizers.L2(0.1)})
            return keras.Sequential([keras.Input(shapes.x), keras.layers.Flatten(), regularized])
        if self.how in ("compiled", "frozen"):
            model = keras.Sequential([keras.Input(shapes.x), keras.layers.Flatten(), keras.layers.Dense(10)])
            if self.how == "compiled":
                model.compile("sgd", "mse")
            model.trainable = self.how != "frozen"
            return model
        if self.how == "unbuilt":  # JAX has no orthogonal numbers in bfloat16, from which an LSTM starts
            narrow = keras.layers.LSTM(4, dtype="bfloat16", name="narrow")
            layers = [keras.layers.Reshape((8, 8)), narrow, keras.layers.Dense(10, name="last")]
            return keras.Sequential([keras.Input(shapes.x), *layers])
        return Pair() if self.how == "pair" else None
