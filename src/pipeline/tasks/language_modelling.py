"""Language modelling: at every position of a sequence the model gives a logit for each token that may come next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.errors import RunError
from pipeline.metrics import classification as metrics
from pipeline.metrics.perplexity import Perplexity
from pipeline.models import Shapes
from pipeline.runs.result import Metric
from pipeline.tasks import ExampleKind, Judge, Ops, Targets, Task, beyond_vocabulary
from pipeline.tokens import Tokens

if TYPE_CHECKING:
    from pipeline.contracts import Loss
    from pipeline.runs.fit import Predict
    from pipeline.runs.result import Direction


SAME = 1e-3  # of the largest logit: by how much rounding alone may move one
ROWS = 1024  # sequences that are counted at once: a text may be larger than memory


@dataclass(frozen=True)
class LanguageModelling(Task):
    """Sequences of `length` tokens below `vocabulary`: x (N, T) int, y (N, T) int, the token after each of x.

    `tokens`: the vocabulary, where they are of a text. Its judge then measures bits per byte too: they compare models
    whose tokens differ. A byte is counted where its token was predicted, so not the first token of the split nor the
    last few, which fill no sequence.
    """

    unit: ClassVar[str] = "tokens"
    score: ClassVar[str | None] = "accuracy"
    example_kind: ClassVar[ExampleKind | None] = "tokens"
    targets: ClassVar[Targets | None] = "classes"
    headline: ClassVar[str | None] = "test/bits_per_byte"  # a loss is of a token, of whichever alphabet
    of_probabilities: ClassVar[tuple[str, ...]] = ("perplexity", "bits_per_byte")
    tested: ClassVar[Mapping[str, Direction]] = {
        "loss": "min",
        "accuracy": "max",
        "perplexity": "min",
        "bits_per_byte": "min",
    }

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
        return beyond_vocabulary(y, self.vocabulary)

    def judge(self, loss: Loss) -> Judge:
        return LanguageJudge(self, loss)

    def validated(self, loss: Loss, found: Mapping[str, float], y: np.ndarray) -> tuple[Metric, ...]:
        """Bits per byte, which grids choose by whatever the tokens are."""
        if self.tokens is None or not loss.nats or "validation/loss" not in found:
            return ()
        counted = np.zeros(self.tokens.size, np.int64)
        for first in range(0, len(y), ROWS):
            counted += np.bincount(y[first : first + ROWS].ravel(), minlength=len(counted))
        bits = found["validation/loss"] * counted.sum() / math.log(2) / (counted @ self.tokens.lengths())
        return (Metric("validation/bits_per_byte", float(bits), "bits/byte", direction="min"),)

    def card(self) -> dict[str, Any]:
        """With the vocabulary, by which `pipeline.tokens.from_plain` encodes and decodes text as in training."""
        tokens = {} if self.tokens is None else {"tokens": self.tokens.plain()}
        return {**super().card(), "vocabulary": self.vocabulary, **tokens}


class LanguageJudge(Judge):
    """The experiment's loss, accuracy, perplexity and, of text, bits per byte over all positions."""

    def __init__(self, task: LanguageModelling, loss: Loss) -> None:
        self.task, self.perplexity = task, Perplexity()
        self.loss, self.accuracy, self.nats = (
            metrics.Mean(one) for one in (loss.numpy, metrics.accuracy, metrics.cross_entropy)
        )
        self.lengths = None if task.tokens is None else task.tokens.lengths()
        self.bytes, self.asked = 0, False

    def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None:
        logits, labels = self.task.compared(np, outputs, y)
        for metric in (self.loss, self.accuracy, self.nats):
            metric.add(logits, labels)
        if self.lengths is not None:
            self.bytes += int(self.lengths[labels].sum())

    def ask(self, predict: Predict, x: np.ndarray, y: np.ndarray) -> None:
        """Of the first batch: whether the model looks ahead, at the tokens that it is to predict."""
        half = x.shape[1] // 2
        if self.asked or not half or not np.array_equal(x[:, 1:], y[:, :-1]):  # other targets may be seen
            return
        self.asked = True
        moved = by_what_follows(predict, x, half, self.task.vocabulary)
        if moved:
            raise looks_ahead(f"other tokens from {half + 1} on", half, moved, "its bits per byte say")

    def metrics(self) -> tuple[Metric, ...]:
        found = (
            Metric("test/loss", self.loss.value(), direction="min"),
            Metric("test/accuracy", self.accuracy.value(), direction="max"),
            Metric("test/perplexity", self.perplexity.value((self.nats.total, self.nats.seen)), direction="min"),
        )
        if self.lengths is None:
            return found
        bits = self.nats.total / math.log(2) / self.bytes
        return (*found, Metric("test/bits_per_byte", bits, "bits/byte", direction="min"))


def looks_ahead(what: str, half: int, moved: float, worthless: str) -> RunError:
    """The error of a model of which `what` has moved the logits at the first `half` tokens."""
    return RunError(
        f"the model looks ahead: {what} move its logits at the first {half} tokens by up to {moved:.1e}; it sees what "
        "it should predict, as through a missing mask or a convolution padded on both sides, so neither its loss nor "
        f"{worthless} anything"
    )


def by_what_follows(predict: Predict, x_NT: np.ndarray, half: int, vocabulary: int, source: int = 0) -> float:
    """By how much logits at the first `half` tokens of a sequence move with the tokens behind them; 0: by rounding.

    `source`: tokens before the sequence, which have no logits. A model that draws as it predicts moves them without a
    cause: of such a one nothing can be said.
    """
    other_NT, behind = x_NT.copy(), slice(source + half, None)
    other_NT[:, behind] = (other_NT[:, behind] + 1) % vocabulary
    first = slice(0, half)
    seen, unseen = (predict(x)[0, first] for x in (x_NT, other_NT))
    moved = float(np.abs(seen - unseen).max())
    if moved <= SAME * float(np.abs(seen).max()):
        return 0.0
    return moved if np.array_equal(seen, predict(x_NT)[0, first]) else 0.0
