"""What the datasets of text share: documents become one stream of tokens, which is cut into sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import Field, PositiveInt

from pipeline import tokens as vocabularies
from pipeline.contracts import Dataset
from pipeline.datasets import Data, Split
from pipeline.errors import UserError
from pipeline.spec import choice, spec
from pipeline.tasks import Task
from pipeline.tasks.language_modelling import LanguageModelling
from pipeline.tokens import Content

Share = Annotated[float, Field(ge=0, lt=1)]
BETWEEN = b"\n\n"  # documents of one split


@dataclass(frozen=True)
class Divided:
    """The text of each split."""

    train: Content
    validation: Content
    test: Content


@spec
class Corpus(Dataset):
    """The settings of every text; each is a separate spec that says where its documents come from.

    `context`: tokens of a sequence. `tokens`: what a token is; `vocabulary`: how many there are, of bpe alone.
    `validation`, `test`: shares of the text. `stride`: tokens from the beginning of a training sequence to that of the
    next (None: the context, so that no token is predicted twice in an epoch).
    """

    task: ClassVar[type[Task]] = LanguageModelling

    context: PositiveInt = 64
    tokens: Literal["bytes", "characters", "bpe"] = "characters"
    vocabulary: PositiveInt = 1024
    validation: Share = 0.05
    test: Annotated[float, Field(gt=0, lt=1)] = 0.1
    stride: PositiveInt | None = None

    def __post_init__(self) -> None:
        vocabularies.check_size(self.tokens, self.vocabulary)
        if self.validation + self.test >= 1:
            raise UserError(
                f"dataset.validation={self.validation} with dataset.test={self.test}: no text is left to train on"
            )

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]  # it depends on a setting
        """The package that encodes the text."""
        return ("tokenizers",) if self.tokens == "bpe" else ()

    def documents(self, root: Path) -> Sequence[Content]:
        """The texts, in an order that is always the same. Raises UserError."""
        raise NotImplementedError

    def texts(self, documents: Sequence[Content], seed: int) -> Divided:
        """The text of each split of its documents."""
        return divided(documents, self.validation, self.test, seed)

    def load(self, root: Path, seed: int) -> Data:
        """Divide the documents, learn the tokens of those to train on, and cut sequences."""
        documents = self.documents(root)
        who = f"dataset={choice(self)}"
        text = self.texts(documents, seed)
        # The alphabet is that of the whole text: otherwise a rare character of the test could not be encoded.
        known = [text.train, text.validation, text.test] if self.tokens == "characters" else [text.train]
        tokens = vocabularies.learned(self.tokens, known, self.vocabulary, who)
        train = sequences(tokens.encode(text.train, who), self.context, self.stride, f"{who}: the training text")
        test = sequences(tokens.encode(text.test, who), self.context, None, f"{who}: dataset.test={self.test}")
        validation = Split(train.x[:0], train.y[:0])
        if len(text.validation):
            key = f"{who}: dataset.validation={self.validation}"
            validation = sequences(tokens.encode(text.validation, who), self.context, None, key)
        task = LanguageModelling(self.context, tokens.size, tokens)
        notes = self._notes(len(documents), tokens.size, validated=len(text.validation) > 0)
        return Data(train, validation, test, task, sha256(documents), notes=notes)

    def _notes(self, documents: int, learned: int, *, validated: bool) -> tuple[str, ...]:
        found = []
        if documents == 2 and self.validation and not validated:
            found.append(
                f"dataset.validation={self.validation}: of 2 documents one is the test, one is trained on, "
                "and none validates"
            )
        if self.tokens == "bpe" and learned != self.vocabulary:
            found.append(
                f"dataset.vocabulary={self.vocabulary}: {learned:,} tokens were learned; "
                "after them nothing in the training text occurs twice"
            )
        return tuple(found)


def divided(documents: Sequence[Content], validation: float, test: float, seed: int) -> Divided:
    """The text of each split. A single document is cut: its end is the test, what comes before it the validation.

    Of several, whole documents are held out: for the test always the same ones, for validation by `seed`.
    """
    if len(documents) == 1:
        (text,) = documents
        first, second = (_between_characters(text, share) for share in (1 - test - validation, 1 - test))
        return Divided(text[:first], text[first:second], text[second:])
    left = list(range(len(documents)))
    sizes = [len(document) for document in documents]
    tested = _drawn(left, sizes, test, np.random.default_rng(0))
    left = [number for number in left if number not in tested]
    validated = _drawn(left, sizes, validation, np.random.default_rng(seed))
    parts = ([number for number in left if number not in validated], validated, tested)
    return Divided(*(BETWEEN.join(documents[number] for number in sorted(part)) for part in parts))


def _between_characters(text: Content, share: float) -> int:
    """Where `share` of a text ends, moved to the next beginning of a UTF-8 character."""
    end = round(len(text) * share)
    while end < len(text) and text[end] & 0xC0 == 0x80:
        end += 1
    return end


def _drawn(numbers: Sequence[int], sizes: Sequence[int], share: float, generator: np.random.Generator) -> list[int]:
    """Documents of `numbers`, at random, whose sizes come nearest to `share` of all; at least one stays behind.

    Where each is too large for that, the one that comes nearest: a share that was asked for is not left empty.
    """
    wanted, found, total = share * sum(sizes), list[int](), 0
    order = [int(number) for number in generator.permutation(numbers)]
    for number in order[: len(numbers) - 1]:
        if abs(total + sizes[number] - wanted) < abs(total - wanted):
            found.append(number)
            total += sizes[number]
    if share > 0 and not found and len(order) > 1:
        return [min(order, key=lambda number: abs(sizes[number] - wanted))]
    return found


def sequences(stream: np.ndarray, context: int, stride: int | None, who: str) -> Split:
    """Sequences x (N, T) of a stream and, for each token, the next, y (N, T). Views: nothing is copied.

    The last tokens, fewer than a sequence, are left out. Raises UserError for a stream that is too short.
    """
    if len(stream) <= context:
        raise UserError(f"{who}: has {len(stream):,} tokens; dataset.context={context} needs {context + 1:,} or more")
    step = stride or context
    x, y = (sliding_window_view(part, context)[::step] for part in (stream[:-1], stream[1:]))
    return Split(x, y)


def sha256(documents: Sequence[Content]) -> str:
    """Of the documents, each with its length."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{len(document)}:".encode())
        digest.update(document)
    return digest.hexdigest()
