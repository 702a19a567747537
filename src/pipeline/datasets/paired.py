"""What the datasets of pairs share: a source text and the target text that a model is to write, by characters."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from pipeline.contracts import Dataset
from pipeline.datasets import Data, Split
from pipeline.errors import UserError, shown
from pipeline.models import PADDING
from pipeline.spec import choice, spec
from pipeline.tasks import Task
from pipeline.tasks.sequence_to_sequence import BEGIN, END, SIGNS, SPECIAL, SequenceToSequence
from pipeline.tokens import Tokens
from pipeline.tokens.character import Characters

Pair = tuple[str, str]


@spec
class Paired(Dataset):
    """The settings of all pairs; each dataset is a separate spec that makes its own.

    `train`, `validation`, `test`: how many pairs. No source is in two of them. The test's are the same for every seed;
    the experiment's seed divides the others.
    """

    task: ClassVar[type[Task]] = SequenceToSequence

    train: PositiveInt = 10_000
    validation: Annotated[int, Field(ge=0)] = 500
    test: PositiveInt = 1_000

    @property
    def count(self) -> int:
        """Pairs of all splits."""
        return self.train + self.validation + self.test

    def pairs(self) -> Sequence[Pair]:
        """`count` sources with their targets: always the same ones, in an order at random. Raises UserError."""
        raise NotImplementedError

    def load(self, root: Path, seed: int) -> Data:
        """Make the pairs and divide them by `seed`. Nothing is cached below `root`."""
        pairs, who = self.pairs(), f"dataset={choice(self)}"
        if len(pairs) != self.count:
            raise UserError(
                f"{who}: pairs() gave {len(pairs):,}; dataset.train={self.train}, dataset.validation={self.validation} "
                f"and dataset.test={self.test} are {self.count:,} together"
            )
        check_pairs(pairs, who)
        tokens = Characters("".join(sorted({letter for pair in pairs for letter in "".join(pair)})))
        whole = encoded(pairs, tokens, who)
        test = _rows(whole, np.arange(self.test))
        order = self.test + np.random.default_rng(seed).permutation(len(pairs) - self.test)
        validation, train = _rows(whole, order[: self.validation]), _rows(whole, order[self.validation :])
        length = whole.y.shape[1]
        share = float((train.y != PADDING).mean())
        task = SequenceToSequence(whole.x.shape[1] - length, length, tokens, share)
        return Data(train, validation, test, task, sha256(pairs))


def check_pairs(pairs: Sequence[Pair], who: str) -> None:
    """Refuse empty sources and targets, signs of special tokens in them, and a source that occurs twice.

    Raises UserError.
    """
    seen: dict[str, int] = {}
    for number, (source, target) in enumerate(pairs, start=1):
        for name, text in (("source", source), ("target", target)):
            if not text:
                raise UserError(f"{who}: pair {number:,} ({shown(source)}, {shown(target)}) has an empty {name}")
            if sign := next((one for one in SIGNS.values() if one in text), None):
                raise UserError(f"{who}: the {name} of pair {number:,} has {sign}, which stands for a special token")
        if source in seen:
            first = seen[source]
            raise UserError(
                f"{who}: pair {number:,} has the source of pair {first:,}, {shown(source)}; it could be in two splits"
            )
        seen[source] = number


def encoded(pairs: Sequence[Pair], tokens: Tokens, who: str) -> Split:
    """Sources and the targets so far side by side (N, S + T), and targets (N, T); as long as the longest, and END."""
    source, target = (1 + max(len(pair[side]) for pair in pairs) for side in (0, 1))
    x = np.full((len(pairs), source + target), PADDING, np.int32)
    y = np.full((len(pairs), target), PADDING, np.int64)
    for row, (read, written) in enumerate(pairs):
        _write(x[row, :source], read, tokens, who)
        _write(y[row], written, tokens, who)
    x[:, source] = BEGIN
    so_far = x[:, source + 1 :]
    so_far[:] = np.where(y[:, :-1] == END, PADDING, y[:, :-1])
    return Split(x, y)


def _write(row: np.ndarray, text: str, tokens: Tokens, who: str) -> None:
    """A text's tokens and END, at the beginning of a row of PADDING."""
    row[: len(text)] = SPECIAL + tokens.encode(text.encode(), who).astype(row.dtype)
    row[len(text)] = END


def _rows(whole: Split, rows: np.ndarray) -> Split:
    return Split(whole.x[rows], whole.y[rows])


def sha256(pairs: Sequence[Pair]) -> str:
    """Of the pairs, each text with its length."""
    digest = hashlib.sha256()
    for pair in pairs:
        for text in pair:
            digest.update(f"{len(text.encode())}:".encode() + text.encode())
    return digest.hexdigest()
