"""Sequence to sequence: a model reads a source, and writes a target token by token.

In training the decoder gets the true target so far (teacher forcing). On the test set it also runs free: what it wrote
is what it reads next, from the token BEGIN on until it writes END.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.metrics import classification as metrics
from pipeline.models import PADDING, Shapes
from pipeline.report.csv_file import csv_file
from pipeline.report.intervals import Interval, by_examples
from pipeline.runs.fit import Predict
from pipeline.runs.result import Metric
from pipeline.tasks import Details, ExampleKind, Judge, Ops, Targets, Task, beyond_vocabulary
from pipeline.tasks.language_modelling import by_what_follows, looks_ahead
from pipeline.tokens import Tokens

if TYPE_CHECKING:
    from pipeline.contracts import Loss
    from pipeline.runs.result import Direction
    from pipeline.runs.run import Run

BEGIN, END = 1, 2
SPECIAL = 3  # PADDING, BEGIN and END: the tokens of the text come after them
SIGNS = {PADDING: "␀", BEGIN: "␂"}  # of those that a model may write before its END


@dataclass(frozen=True)
class SequenceToSequence(Task):
    """x (N, S + T) int: a source and its END, then BEGIN and the target without its last token; y (N, T) int: the
    target and END. Both are filled up with PADDING, which counts in no loss and no metric.

    `source`: S. `target`: T. `tokens`: what the numbers from SPECIAL on stand for. `counted_share`: of y in the
    training split, what is not padding.
    """

    unit: ClassVar[str] = "sequences"
    score: ClassVar[str | None] = "accuracy"
    example_kind: ClassVar[ExampleKind | None] = "pairs of sequences"
    targets: ClassVar[Targets | None] = "classes"
    headline: ClassVar[str | None] = "test/exact_match"
    pads: ClassVar[bool] = True
    tested: ClassVar[Mapping[str, Direction]] = {"loss": "min", "accuracy": "max", "exact_match": "max"}

    source: int
    target: int
    tokens: Tokens
    counted_share: float = 1.0

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return SPECIAL + self.tokens.size

    @property
    def shapes(self) -> Shapes:
        return Shapes((self.source + self.target,), (self.target, self.vocabulary), vocabulary=self.vocabulary)

    def compared(self, ops: Ops, outputs: Any, y: Any) -> tuple[Any, Any]:
        """Every position is its own example: (N * T, vocabulary) against (N * T,)."""
        return ops.reshape(outputs, (-1, self.vocabulary)), ops.reshape(y, (-1,))

    def counted(self, ops: Ops, y: Any) -> Any:
        return ops.reshape(y, (-1,)) != PADDING

    def scores(self, ops: Ops, outputs: Any, y: Any) -> Any:
        """Of each sequence the share of its tokens that are right, given the true ones before them."""
        real = y != PADDING
        return ops.sum((ops.argmax(outputs, 2) == y) & real, 1) / ops.sum(real, 1)

    def check(self, y: np.ndarray) -> str | None:
        if y.shape[1:] != (self.target,) or y.dtype.kind not in "iu":
            return f"shape {y.shape} and dtype {y.dtype}; targets are (N, {self.target}) integers"
        if said := beyond_vocabulary(y, self.vocabulary):
            return said
        ends = y == END
        at = ends.argmax(1)
        behind = np.arange(self.target) > at[:, None]
        wrong = np.flatnonzero(~((ends.sum(1) == 1) & ((y == PADDING) == behind).all(1) & (at > 0)))
        if len(wrong):
            return f"row {wrong[0]} is {y[wrong[0]].tolist()}; a target has tokens, then {END} (END), then {PADDING}s"
        return None

    def judge(self, loss: Loss) -> Judge:
        return SequenceJudge(self, loss)

    def card(self) -> dict[str, Any]:
        """With the vocabulary."""
        return {**super().card(), "vocabulary": self.vocabulary, "tokens": self.tokens.plain()}

    def text(self, tokens: np.ndarray) -> str:
        """What a row stands for, up to its END."""
        ends = np.flatnonzero(tokens == END)
        kept = tokens[: ends[0]] if len(ends) else tokens
        parts = np.split(kept, np.flatnonzero(kept < SPECIAL))  # but for the first, each begins with such a token
        texts = [self.tokens.decode(part[part >= SPECIAL] - SPECIAL).decode("utf-8", "replace") for part in parts]
        return texts[0] + "".join(SIGNS[part[0]] + text for part, text in zip(parts[1:], texts[1:], strict=True))


def decoded(predict: Predict, x_NW: np.ndarray, target: int) -> np.ndarray:
    """What the model writes behind each source, (N, T): the most probable token each time, END, then PADDING.

    x (N, S + T): of the target's part nothing is read. One that never ends fills T.
    """
    source, x_NW = x_NW.shape[1] - target, x_NW.copy()
    x_NW[:, source:] = PADDING
    x_NW[:, source] = BEGIN
    found_NT = np.full((len(x_NW), target), PADDING, np.int64)
    writes_N = np.ones(len(x_NW), bool)
    for at in range(target):
        best_N = predict(x_NW)[:, at].argmax(axis=1)
        found_NT[writes_N, at] = best_N[writes_N]
        writes_N &= best_N != END
        if at + 1 == target or not writes_N.any():
            break
        x_NW[writes_N, source + at + 1] = best_N[writes_N]
    return found_NT


class SequenceJudge(Judge):
    """The loss and the share of right tokens with the true target so far, and the exact match of what runs free."""

    def __init__(self, task: SequenceToSequence, loss: Loss) -> None:
        self.task, self.loss = task, metrics.Mean(loss.numpy)
        self.scores: list[np.ndarray] = []
        self.rows: list[tuple[str, str, str]] = []  # source, target and what was written
        self.matches: list[np.ndarray] = []
        self.asked = False

    def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None:
        counted = self.task.counted(np, y)
        self.loss.add(*(part[counted] for part in self.task.compared(np, outputs, y)))
        self.scores.append(self.task.scores(np, outputs, y))

    def ask(self, predict: Predict, x: np.ndarray, y: np.ndarray) -> None:
        """What the model writes; of the first batch also whether its decoder looks ahead."""
        if not self.asked:
            self.asked = True
            self._ask_ahead(predict, x, y)
        found = decoded(predict, x, self.task.target)
        self.matches.append((found == y).all(axis=1))
        text = self.task.text
        for source, target, written in zip(x[:, : self.task.source], y, found, strict=True):
            self.rows.append((text(source), text(target), text(written)))

    def _ask_ahead(self, predict: Predict, x: np.ndarray, y: np.ndarray) -> None:
        before, source, half = y[:, :-1], self.task.source, self.task.target // 2
        given = (x[:, source + 1 :] == before) | (before < SPECIAL)
        if not half or not given.all():  # what is not a target may be seen
            return
        moved = by_what_follows(predict, x, half, self.task.vocabulary, source)
        if moved:
            raise looks_ahead(f"other tokens of the target from {half} on", half, moved, "its accuracy says")

    def metrics(self) -> tuple[Metric, ...]:
        """Without `exact_match` where nothing was decoded: where a model is only tried."""
        found = (
            Metric("test/loss", self.loss.value(), direction="min"),
            Metric("test/accuracy", float(np.concatenate(self.scores).mean()), direction="max"),
        )
        if not self.matches:
            return found
        return (*found, Metric("test/exact_match", float(np.concatenate(self.matches).mean()), direction="max"))

    def intervals(self) -> Mapping[str, Interval]:
        """Of the exact match. The tokens of a sequence are not independent of each other: their accuracy has none."""
        found = by_examples(np.concatenate(self.matches)) if self.matches else None
        return {} if found is None else {"test/exact_match": found}

    def details(self) -> Details:
        """The first sequence that came out wrong."""
        matches = np.concatenate(self.matches)
        wrong = np.flatnonzero(~matches)
        if not len(wrong):
            return Details(rows=(("wrong", f"none of {len(matches):,} sequences"),))
        source, target, written = self.rows[wrong[0]]
        said = f"{len(wrong):,} of {len(matches):,} sequences; the first: {source!r} is {target!r}, not {written!r}"
        return Details(rows=(("wrong", said),))

    def write(self, run: Run) -> None:
        """decoded.csv: a row for each sequence of the test set."""
        with csv_file(run.artifact("decoded.csv")) as rows:
            rows.writerow(("source", "target", "decoded", "exact"))
            matches = np.concatenate(self.matches)
            rows.writerows((*row, str(bool(match)).lower()) for row, match in zip(self.rows, matches, strict=True))
