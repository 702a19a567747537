"""Language modelling: at every position of a sequence the model gives a logit for each token that may come next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.metrics import classification as metrics
from pipeline.metrics.perplexity import Perplexity
from pipeline.models import Shapes
from pipeline.runs.result import Metric
from pipeline.tasks import Judge, Ops, Targets, Task
from pipeline.tokens import Tokens

if TYPE_CHECKING:
    from pipeline.contracts import Loss
    from pipeline.runs.result import Direction


@dataclass(frozen=True)
class LanguageModelling(Task):
    """Sequences of `length` tokens below `vocabulary`: x (N, T) int, y (N, T) int, the token after each of x.

    `tokens`: what they stand for, where they are of a text."""

    unit: ClassVar[str] = "tokens"
    score: ClassVar[str | None] = "accuracy"
    targets: ClassVar[Targets | None] = "classes"
    tested: ClassVar[Mapping[str, Direction]] = {"loss": "min", "accuracy": "max", "perplexity": "min"}

    length: int
    vocabulary: int
    tokens: Tokens | None = None

    @property
    def shapes(self) -> Shapes:
        return Shapes((self.length,), (self.length, self.vocabulary), vocabulary=self.vocabulary)

    @property
    def units(self) -> int:
        return self.length

    def compared(self, ops: Ops, outputs: Any, y: Any) -> tuple[Any, Any]:
        """Every position is its own example: (N * T, vocabulary) against (N * T,)."""
        return ops.reshape(outputs, (-1, self.vocabulary)), ops.reshape(y, (-1,))

    def scores(self, ops: Ops, outputs: Any, y: Any) -> Any:
        return ops.argmax(outputs, 2) == y

    def check(self, y: np.ndarray) -> str | None:
        if y.shape[1:] != (self.length,) or y.dtype.kind not in "iu":
            return f"shape {y.shape} and dtype {y.dtype}; next tokens are (N, {self.length}) integers"
        if len(y) and not (y.min() >= 0 and y.max() < self.vocabulary):
            return f"tokens {y.min()} to {y.max()}; the vocabulary is 0 to {self.vocabulary - 1}"
        return None

    def judge(self, loss: Loss) -> Judge:
        return LanguageJudge(self, loss)


class LanguageJudge(Judge):
    """The experiment's loss, accuracy and perplexity over all positions."""

    def __init__(self, task: LanguageModelling, loss: Loss) -> None:
        self.task, self.perplexity = task, Perplexity()
        self.loss, self.accuracy, self.nats = (
            metrics.Mean(one) for one in (loss.numpy, metrics.accuracy, metrics.cross_entropy)
        )

    def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None:
        logits, labels = self.task.compared(np, outputs, y)
        for metric in (self.loss, self.accuracy, self.nats):
            metric.add(logits, labels)

    def metrics(self) -> tuple[Metric, ...]:
        return (
            Metric("test/loss", self.loss.value(), direction="min"),
            Metric("test/accuracy", self.accuracy.value(), direction="max"),
            Metric("test/perplexity", self.perplexity.value((self.nats.total, self.nats.seen)), direction="min"),
        )
