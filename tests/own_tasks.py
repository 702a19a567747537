"""What a user may bring from outside: datasets of four tasks, two of them their own, models, a loss and a stage.

The tests copy this file to a folder outside the repository and allow it by PIPELINE_MODULES.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.contracts import Dataset, Loss, Metric, Model
from pipeline.datasets import Data, Split
from pipeline.datasets.split import hash_splits
from pipeline.metrics.classification import Mean
from pipeline.models import Shapes
from pipeline.runs.result import Direction, Result
from pipeline.runs.result import Metric as Measured
from pipeline.spec import spec
from pipeline.stages.train import Train
from pipeline.tasks import Judge, Ops, Targets, Task
from pipeline.tasks.language_modelling import LanguageModelling

VOCABULARY, LENGTH, WIDTH = 11, 8, 16


def cut(whole: Split) -> tuple[Split, Split, Split]:
    """Three quarters to train on, an eighth each for validation and test: views, so a mapped file stays one."""
    first, second = len(whole) * 3 // 4, len(whole) * 7 // 8
    parts = (slice(first), slice(first, second), slice(second, None))
    train, validation, test = (Split(whole.x[rows], whole.y[rows]) for rows in parts)
    return train, validation, test


# Language modelling


@spec
class Counting(Dataset):
    """Sequences that count on by a step of their own, modulo VOCABULARY: what comes next can be learned."""

    task: ClassVar[type[Task]] = LanguageModelling

    examples: int = 320

    def load(self, root: Path, seed: int) -> Data:
        generator = np.random.default_rng(seed)
        start, step = generator.integers(0, VOCABULARY, (2, self.examples, 1))
        tokens_NT = (start + step * np.arange(LENGTH + 1)) % VOCABULARY
        whole = Split(tokens_NT[:, :-1].astype(np.uint16), tokens_NT[:, 1:].astype(np.int64))
        return Data(*cut(whole), LanguageModelling(LENGTH, VOCABULARY), hash_splits(whole))


@spec
class TinyTransformer(Model):
    """Embeddings, one block of self-attention, and logits; `tied`: by the embeddings' own weights."""

    shared_start: ClassVar[bool] = True

    tied: bool = False
    causal: bool = True

    def torch(self, shapes: Shapes) -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        tied, causal, (length,), vocabulary = self.tied, self.causal, shapes.x, shapes.classes

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tokens = nn.Embedding(vocabulary, WIDTH)
                self.positions = nn.Embedding(length, WIDTH)
                self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
                self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
                self.logits = nn.Linear(WIDTH, vocabulary, bias=False)
                if tied:
                    self.logits.weight = self.tokens.weight

            def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
                h_BTD = self.tokens(x_BT) + self.positions(torch.arange(length, device=x_BT.device))
                n_BTD = self.norm(h_BTD)
                query, key, value = (one(n_BTD)[:, None] for one in (self.query, self.key, self.value))
                attended = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)[:, 0]
                logits_BTV: torch.Tensor = self.logits(h_BTD + attended)
                return logits_BTV

        return Net()

    def keras(self, shapes: Shapes) -> Any:
        import keras
        from keras import layers, ops

        causal, (length,), vocabulary = self.causal, shapes.x, shapes.classes

        class Attention(layers.Layer):
            def build(self, _: Any) -> None:
                dense = [layers.Dense(WIDTH, use_bias=False, name=name) for name in ("query", "key", "value")]
                self.query, self.key, self.value = dense
                for one in dense:
                    one.build((None, length, WIDTH))

            def call(self, n_BTD: Any) -> Any:
                query, key, value = self.query(n_BTD), self.key(n_BTD), self.value(n_BTD)
                scores = ops.matmul(query, ops.transpose(key, (0, 2, 1))) / ops.cast(WIDTH**0.5, query.dtype)
                every = ops.ones((length, length), "bool")
                seen = ops.tril(every) if causal else every
                return ops.matmul(ops.softmax(ops.where(seen, scores, -1e9)), value)

        class Positions(layers.Layer):
            def build(self, _: Any) -> None:
                self.embeddings = self.add_weight(name="embeddings", shape=(length, WIDTH))

            def call(self, tokens_BTD: Any) -> Any:
                return tokens_BTD + self.embeddings

        x_BT = keras.Input((length,), dtype="int32")
        tokens = layers.Embedding(vocabulary, WIDTH, name="tokens")
        h_BTD = Positions(name="positions")(tokens(x_BT))
        attended = Attention(name="attention")(layers.LayerNormalization(epsilon=1e-6, name="norm")(h_BTD))
        if self.tied:
            outputs = tied_logits(tokens, h_BTD + attended)
        else:
            outputs = layers.Dense(vocabulary, use_bias=False, name="logits")(h_BTD + attended)
        return keras.Model(x_BT, outputs)


def tied_logits(tokens: Any, h_BTD: Any) -> Any:
    """h times the embeddings transposed, as a Keras layer that holds no weights."""
    from keras import layers, ops

    class Logits(layers.Layer):
        def call(self, h: Any) -> Any:
            return ops.matmul(h, ops.transpose(ops.cast(tokens.embeddings, h.dtype)))

    return Logits()(h_BTD)


# Regression: a task of one's own


@dataclass(frozen=True)
class Regression(Task):
    """Real numbers x (N, inputs), y (N, outputs); judged by the mean absolute error."""

    unit: ClassVar[str] = "rows"
    score: ClassVar[str | None] = "absolute_error"
    better: ClassVar[Direction] = "min"
    targets: ClassVar[Targets | None] = "numbers"

    inputs: int
    outputs: int

    @property
    def shapes(self) -> Shapes:
        return Shapes((self.inputs,), (self.outputs,))

    def scores(self, ops: Ops, outputs: Any, y: Any) -> Any:
        return ops.abs(outputs - y) / self.outputs

    def check(self, y: np.ndarray) -> str | None:
        return None if y.shape[1:] == (self.outputs,) and y.dtype.kind == "f" else f"shape {y.shape}, dtype {y.dtype}"

    def judge(self, loss: Loss) -> Judge:
        return RegressionJudge(loss)


class RegressionJudge(Judge):
    """Loss and mean absolute error."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.error = Mean(loss.numpy), Mean(lambda outputs, y: float(np.abs(outputs - y).mean()))

    def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None:
        self.loss.add(outputs, y)
        self.error.add(outputs, y)

    def metrics(self) -> tuple[Measured, ...]:
        named = {"test/loss": self.loss, "test/absolute_error": self.error}
        return tuple(Measured(name, metric.value(), direction="min") for name, metric in named.items())


@spec
class Within(Metric):
    """The share of numbers that are at most `distance` off, in percent."""

    direction = "max"
    unit = "%"

    distance: float = 1.0

    @property
    def name(self) -> str:
        return f"within_{self.distance:g}"

    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        return (np.abs(outputs - targets) <= self.distance).sum(), targets.size

    def value(self, sums: Any) -> float:
        return 100 * sums[0] / sums[1]


@spec
class SquaredError(Loss):
    """The mean of (outputs - y)^2."""

    def torch(self) -> Callable[[Any, Any], Any]:
        from torch.nn import functional

        return functional.mse_loss

    def keras(self) -> Callable[[Any, Any], Any]:
        from keras import ops

        return lambda outputs, y: ops.mean(ops.square(outputs - y))

    def numpy(self, outputs: np.ndarray, y: np.ndarray) -> float:
        return float(np.square(outputs - y).mean())


@spec
class WeightedError(Loss):
    """The second output counts twice; torch keeps the weights as a tensor of a module."""

    def torch(self) -> Callable[[Any, Any], Any]:
        import torch

        class Weighted(torch.nn.Module):
            weights: torch.Tensor

            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("weights", torch.tensor([1.0, 2.0]))

            def forward(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                squares = torch.nn.functional.mse_loss(outputs, y, reduction="none")
                return torch.nn.functional.linear(squares, self.weights[None]).mean() / 2

        return Weighted()

    def keras(self) -> Callable[[Any, Any], Any]:
        from keras import ops

        return lambda outputs, y: ops.mean(ops.square(outputs - y) * ops.cast([1.0, 2.0], outputs.dtype))

    def numpy(self, outputs: np.ndarray, y: np.ndarray) -> float:
        return float((np.square(outputs - y) * [1.0, 2.0]).mean())


@spec
class Plane(Dataset):
    """y = x @ w + noise. `file`: x as a memory-mapped .npy of float32, (N, inputs), in place of drawn ones."""

    task: ClassVar[type[Task]] = Regression

    file: str | None = None

    def load(self, root: Path, seed: int) -> Data:
        generator = np.random.default_rng(seed)
        x = generator.normal(size=(400, 5)).astype(np.float32) if self.file is None else np.load(self.file, "r")
        y = (x[:, :5] @ generator.normal(size=(5, 2))).astype(np.float32)
        return Data(*cut(Split(x, y)), Regression(x.shape[1], 2), hash_splits(Split(x[:8], y[:8])))


@spec
class Dense(Model):
    """One linear layer, from any shape of real numbers."""

    shared_start: ClassVar[bool] = True

    def torch(self, shapes: Shapes) -> Any:
        from torch import nn

        return nn.Linear(shapes.x[0], shapes.outputs[0])

    def keras(self, shapes: Shapes) -> Any:
        import keras

        return keras.Sequential([keras.Input(shapes.x), keras.layers.Dense(shapes.outputs[0])])


@spec
class Subclassed(Model):
    """The same; for Keras a subclass of keras.Model, which has no weights before it has seen an input."""

    shared_start: ClassVar[bool] = True

    def torch(self, shapes: Shapes) -> Any:
        return Dense().torch(shapes)

    def keras(self, shapes: Shapes) -> Any:
        import keras

        class Net(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = keras.layers.Dense(shapes.outputs[0])

            def call(self, x: Any) -> Any:
                return self.dense(x)

        return Net()


# Sequence to sequence: a source and the target so far go in side by side, the target comes out


@dataclass(frozen=True)
class Reversal(Task):
    """x (N, 2T): T tokens of a source, then the target so far; y (N, T): the target, the source read backwards."""

    unit: ClassVar[str] = "tokens"
    score: ClassVar[str | None] = "accuracy"
    targets: ClassVar[Targets | None] = "classes"

    @property
    def shapes(self) -> Shapes:
        return Shapes((2 * LENGTH,), (LENGTH, VOCABULARY), vocabulary=VOCABULARY)

    @property
    def units(self) -> int:
        return LENGTH

    def compared(self, ops: Ops, outputs: Any, y: Any) -> tuple[Any, Any]:
        return ops.reshape(outputs, (-1, VOCABULARY)), ops.reshape(y, (-1,))

    def scores(self, ops: Ops, outputs: Any, y: Any) -> Any:
        return ops.argmax(outputs, 2) == y

    def check(self, y: np.ndarray) -> str | None:
        return None if y.shape[1:] == (LENGTH,) and y.dtype == np.int64 else f"shape {y.shape}, dtype {y.dtype}"

    def judge(self, loss: Loss) -> Judge:
        return LanguageModelling(LENGTH, VOCABULARY).judge(loss)


@spec
class Reversed(Dataset):
    """Random sources and their reversals; token 0 begins a target."""

    task: ClassVar[type[Task]] = Reversal

    def load(self, root: Path, seed: int) -> Data:
        generator = np.random.default_rng(seed)
        source_NT = generator.integers(1, VOCABULARY, (400, LENGTH))
        target_NT = source_NT[:, ::-1]
        so_far_NT = np.pad(target_NT[:, :-1], ((0, 0), (1, 0)))
        whole = Split(np.concatenate([source_NT, so_far_NT], axis=1).astype(np.int32), target_NT.astype(np.int64))
        return Data(*cut(whole), Reversal(), hash_splits(whole))


@spec
class EncoderDecoder(Model):
    """Embeds source and target, and mixes the source's positions by one Dense layer into the target's."""

    shared_start: ClassVar[bool] = True

    def torch(self, shapes: Shapes) -> Any:
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tokens = nn.Embedding(VOCABULARY, WIDTH)
                self.mixed = nn.Linear(LENGTH, LENGTH)
                self.logits = nn.Linear(WIDTH, VOCABULARY)

            def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
                h_BTD = self.tokens(x_BT)
                source, target = h_BTD[:, :LENGTH], h_BTD[:, LENGTH:]
                logits: torch.Tensor = self.logits(self.mixed(source.transpose(1, 2)).transpose(1, 2) + target)
                return logits

        return Net()

    def keras(self, shapes: Shapes) -> Any:
        import keras
        from keras import layers

        x_BT = keras.Input(shapes.x, dtype="int32")
        h_BTD = layers.Embedding(VOCABULARY, WIDTH, name="tokens")(x_BT)
        source, target = h_BTD[:, :LENGTH], h_BTD[:, LENGTH:]
        mixed = layers.Permute((2, 1))(layers.Dense(LENGTH, name="mixed")(layers.Permute((2, 1))(source)))
        return keras.Model(x_BT, layers.Dense(VOCABULARY, name="logits")(mixed + target))


# A stage


@spec
class Noted(Train):
    """Trains as stage=train does, and adds a note."""

    def run(self, experiment: Any, resolved: Any, run: Any) -> Result:
        from dataclasses import replace

        result = super().run(experiment, resolved, run)
        return replace(result, notes=("a stage from outside",))
