"""Recall: what a model of tokens gives at the last position has to be a token that it has seen before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.metrics import classification as metrics
from pipeline.models import Shapes
from pipeline.runs.result import Metric
from pipeline.tasks import ExampleKind, Judge, Ops, Targets, Task, beyond_vocabulary

if TYPE_CHECKING:
    from pipeline.contracts import Loss
    from pipeline.runs.result import Direction


@dataclass(frozen=True)
class Recall(Task):
    """x (N, T) int below `vocabulary`, y (N,) int: the token asked for at the last position of `length`.

    A model gives logits at every position, (N, T, vocabulary), as a language model does; the last ones alone count.
    """

    unit: ClassVar[str] = "sequences"
    score: ClassVar[str | None] = "accuracy"
    example_kind: ClassVar[ExampleKind | None] = "tokens"
    targets: ClassVar[Targets | None] = "classes"
    headline: ClassVar[str | None] = "test/accuracy"
    tested: ClassVar[Mapping[str, Direction]] = {"loss": "min", "accuracy": "max"}

    length: int
    vocabulary: int

    @property
    def shapes(self) -> Shapes:
        return Shapes((self.length,), (self.length, self.vocabulary), vocabulary=self.vocabulary)

    def compared(self, ops: Ops, outputs: Any, y: Any) -> tuple[Any, Any]:
        """The last position's logits (N, vocabulary) against (N,)."""
        return outputs[:, -1], y

    def scores(self, ops: Ops, outputs: Any, y: Any) -> Any:
        return ops.argmax(outputs[:, -1], 1) == y

    def check(self, y: np.ndarray) -> str | None:
        if y.ndim != 1 or y.dtype.kind not in "iu":
            return f"shape {y.shape} and dtype {y.dtype}; the tokens asked for are (N,) integers"
        return beyond_vocabulary(y, self.vocabulary)

    def judge(self, loss: Loss) -> Judge:
        return RecallJudge(loss)

    def card(self) -> dict[str, Any]:
        return {**super().card(), "vocabulary": self.vocabulary}


class RecallJudge(Judge):
    """Loss and accuracy at the last position."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.accuracy = metrics.Mean(loss.numpy), metrics.Mean(metrics.accuracy)

    def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None:
        for metric in (self.loss, self.accuracy):
            metric.add(outputs[:, -1], y)

    def metrics(self) -> tuple[Metric, ...]:
        return (
            Metric("test/loss", self.loss.value(), direction="min"),
            Metric("test/accuracy", self.accuracy.value(), direction="max"),
        )
