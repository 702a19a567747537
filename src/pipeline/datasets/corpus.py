"""What the datasets of text share: documents become one stream of tokens, which is cut into sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import Field, PositiveInt

from pipeline import tokens as vocabularies
from pipeline.contracts import Dataset
from pipeline.datasets import Data, Split
from pipeline.datasets.documents import Document, File, content, joined, joined_size, sha256
from pipeline.datasets.split import HASHED, Share
from pipeline.datasets.text_overlap import LEAST, OPTIMISTIC, common
from pipeline.datasets.unknown_character import placed
from pipeline.errors import UserError, bad_choice
from pipeline.runs.json_files import read_json
from pipeline.spec import choice, spec
from pipeline.tasks import Task
from pipeline.tasks.language_modelling import LanguageModelling
from pipeline.tokens import Content, Tokens, next_character
from pipeline.tokens.character import UnknownCharacter

MOST_NAMED = 3  # files in a message


@dataclass(frozen=True)
class Divided:
    """The documents of each split: of train, validation and test. The text of one is made when it is asked for.

    `folder`: for the file that a long text of several documents is written to; None: it is kept in memory.
    """

    documents: tuple[Sequence[Document], Sequence[Document], Sequence[Document]]
    folder: Path | None = None
    who: str = "text"

    @cached_property
    def train(self) -> Content:
        """The text to train on. Raises UserError, as the others do."""
        return joined(self.documents[0], self.folder, self.who)

    @cached_property
    def validation(self) -> Content:
        """The text held out for validation."""
        return joined(self.documents[1], self.folder, self.who)

    @cached_property
    def test(self) -> Content:
        """The text held out for the test."""
        return joined(self.documents[2], self.folder, self.who)

    @property
    def size(self) -> int:
        """Bytes of all three texts."""
        return sum(joined_size(part) for part in self.documents)


@spec
class Corpus(Dataset):
    """The settings of every text; each is a separate spec that says where its documents come from.

    `context`: tokens of a sequence. `tokens`: what a token is, `bytes`, `characters` or `bpe`, learned from this text;
    or the card.json of a saved run (before the config is checked: a run), whose tokens these are then. `vocabulary`:
    how many there are, of bpe that is learned.
    `validation`, `test`: shares of the text. `stride`: tokens from the beginning of a training sequence to that of the
    next (None: the context, so that no token is predicted twice in an epoch).
    """

    task: ClassVar[type[Task]] = LanguageModelling

    context: PositiveInt = 64
    tokens: str = "characters"
    vocabulary: PositiveInt = 1024
    validation: Share = 0.05
    test: Annotated[float, Field(gt=0, lt=1)] = 0.1
    stride: PositiveInt | None = None

    def __post_init__(self) -> None:
        if self.tokens not in vocabularies.KINDS and Path(self.tokens).suffix != ".json":
            raise bad_choice("dataset.tokens", self.tokens, (*vocabularies.KINDS, "the card.json of a saved run"))
        vocabularies.check_size(self.tokens, self.vocabulary)
        if self.validation + self.test >= 1:
            raise UserError(
                f"dataset.validation={self.validation} with dataset.test={self.test}: no text is left to train on"
            )

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]  # it depends on a setting
        """The package that encodes the text; none for the tokens of a run that a study has still to make."""
        is_to_come = self.tokens not in vocabularies.KINDS and not Path(self.tokens).exists()
        return ("tokenizers",) if not is_to_come and self.kind == "bpe" else ()

    @property
    def kind(self) -> str:
        """What a token is, also of a saved run's. Raises UserError where its card does not say."""
        return self.tokens if self.tokens in vocabularies.KINDS else str(self._kept()["kind"])

    def _kept(self) -> Mapping[str, Any]:
        """The tokens that the card of a saved run describes. Raises UserError."""
        found: Mapping[str, Any] | None = read_json(Path(self.tokens)).get("tokens")
        if not isinstance(found, Mapping) or found.get("kind") not in vocabularies.KINDS:
            raise UserError(
                f"dataset.tokens={self.tokens}: is missing, or does not describe tokens; name a run that was trained "
                "on text"
            )
        return found

    @property
    def user_files(self) -> tuple[Path, ...]:
        """The card whose tokens these are."""
        return () if self.tokens in vocabularies.KINDS else (Path(self.tokens),)

    def documents(self, root: Path) -> Sequence[Document]:
        """The texts, in an order that is always the same. Raises UserError."""
        raise NotImplementedError

    def texts(self, documents: Sequence[Document], seed: int, root: Path | None = None) -> Divided:
        """The text of each split of its documents; a long one is written to a temporary file in `root`."""
        return divided(documents, self.validation, self.test, seed, root, f"dataset={choice(self)}")

    def load(self, root: Path, seed: int) -> Data:
        """Divide the documents, learn the tokens of those to train on, and cut sequences.

        Texts and tokens that are long lie in temporary files in `root`. Raises UserError.
        """
        documents = self.documents(root)
        who = f"dataset={choice(self)}"
        text = self.texts(documents, seed, root)
        tokens = self._tokens(text, who)
        shares = ("the training text", f"dataset.validation={self.validation}", f"dataset.test={self.test}")
        keys = [
            f"{who}: {share}{_of_whole(part, len(documents))}"
            for share, part in zip(shares, text.documents, strict=True)
        ]
        streams = self._streams(tokens, text, documents, root)
        train = sequences(streams[0], self.context, self.stride, keys[0])
        test = sequences(streams[2], self.context, None, keys[2])
        validation = Split(train.x[:0], train.y[:0])
        if len(text.validation):
            validation = sequences(streams[1], self.context, None, keys[1])
        task = LanguageModelling(self.context, tokens.size, tokens)
        notes = (*self._left_out(len(streams[0]), train), *self._notes(len(documents), tokens.size, text))
        held_out = {"validation": _known_by(text.validation), "test": _known_by(text.test)}
        return Data(train, validation, test, task, sha256(documents), notes=notes, held_out=held_out)

    def whole(self, documents: Sequence[Document], root: Path | None = None) -> Divided:
        """All of the text as the test of a model that was trained on another one."""
        return Divided(((), (), documents), root, f"dataset={choice(self)}")

    def load_whole(self, root: Path) -> Data:
        """All of the text as a test, in the tokens of a saved run. Raises UserError."""
        documents = self.documents(root)
        tokens, text = self._kept_tokens(), self.whole(documents, root)
        stream = self._streams(tokens, text, documents, root)[2]
        test = sequences(stream, self.context, None, text.who)
        none = Split(test.x[:0], test.y[:0])
        task = LanguageModelling(self.context, tokens.size, tokens)
        return Data(none, none, test, task, sha256(documents), held_out={"test": _known_by(text.test)})

    def _streams(self, tokens: Tokens, text: Divided, documents: Sequence[Document], root: Path) -> list[np.ndarray]:
        """The tokens of train, validation and test. Raises UserError."""
        who, found = f"dataset={choice(self)}", []
        for part, name in zip(text.documents, ("train", "validation", "test"), strict=True):
            try:
                found.append(tokens.encode(getattr(text, name), who, root))
            except UnknownCharacter as error:
                raise placed(error, documents if len(documents) == 1 else part, who) from error
        return found

    def _tokens(self, text: Divided, who: str) -> Tokens:
        """Those of a saved run, or learned."""
        if self.tokens not in vocabularies.KINDS:
            return self._kept_tokens()
        # The alphabet is that of the whole text: otherwise a rare character of the test could not be encoded.
        known = [text.train, text.validation, text.test] if self.tokens == "characters" else [text.train]
        return vocabularies.learned(self.tokens, known, self.vocabulary, who)

    def _kept_tokens(self) -> Tokens:
        """Those of a saved run. Raises UserError where its card does not describe them."""
        try:
            found = vocabularies.from_plain(self._kept())
            found.lengths()
        except UserError:
            raise
        except Exception as error:  # tokenizers raises nothing narrower
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"dataset.tokens={self.tokens}: describes no tokens ({why})") from error
        return found

    def _notes(self, documents: int, learned: int, text: Divided) -> tuple[str, ...]:
        found = []
        none_left = documents == 2 and self.validation > 0 and not len(text.validation)
        if none_left:
            found.append(
                f"dataset.validation={self.validation}: with 2 documents, one is for the test and one for training, "
                "which leaves none for validation"
            )
        found += self._odd_shares(documents, text, ("test",) if none_left else ("validation", "test"))
        if self.tokens == "bpe" and learned != self.vocabulary:
            found.append(
                f"dataset.vocabulary={self.vocabulary}: {learned:,} tokens were learned; no further pair of tokens "
                "occurs twice within words"
            )
        shared = common(text.train, [getattr(text, name) for name in OPTIMISTIC])
        found += [
            f"{found_there} of the {name} text is also in the training text (leakage): {optimistic}"
            for (name, optimistic), found_there in zip(OPTIMISTIC.items(), shared, strict=True)
            if found_there.share >= LEAST
        ]
        return tuple(found)

    def _left_out(self, tokens: int, train: Split) -> tuple[str, ...]:
        """Where there are tokens between one training sequence and the next. `tokens`: of the training text."""
        if self.stride is None or self.stride <= self.context:
            return ()
        return (
            f"dataset.stride={self.stride}: more than dataset.context={self.context}, so that "
            f"{tokens - train.y.size:,} of the training text's {tokens:,} tokens are predicted by no training sequence",
        )

    def _odd_shares(self, documents: int, text: Divided, names: Sequence[str]) -> list[str]:
        """Of splits that hold more than twice what they were to hold of the text, or less than half."""
        why = f"the text has {text.size:,} bytes"
        if documents > 1:
            why = f"documents are held out whole, and the text has {documents:,}"
        wanted = {name: float(getattr(self, name)) for name in names}
        found = {name: len(getattr(text, name)) / text.size for name in names}
        return [
            f"dataset.{name}={share}: {found[name]:.2g} of the text is held out; {why}"
            for name, share in wanted.items()
            if not share / 2 <= found[name] <= share * 2
        ]


def _of_whole(part: Sequence[Document], documents: int) -> str:
    """Of several documents, those that a split has; the files by their names."""
    if documents == 1:
        return ""
    names = [str(document.path) for document in part[:MOST_NAMED] if isinstance(document, File)]
    names += ["..."] * (len(names) < len(part) and bool(names))
    of_files = f": {', '.join(names)}" if names else ""
    return f" ({len(part)} of {documents} documents, which are held out whole{of_files})"


def _known_by(text: Content) -> str:
    """Its size and a hash of HASHED of its bytes, from end to end."""
    at = range(0, len(text), max(len(text) // HASHED, 1))
    return f"{len(text)}-{hashlib.sha256(bytes(text[place] for place in at)).hexdigest()}"


def divided(
    documents: Sequence[Document],
    validation: float,
    test: float,
    seed: int,
    folder: Path | None = None,
    who: str = "text",
) -> Divided:
    """The text of each split. A single document is cut: its end is the test, what comes before it the validation.

    Of several, whole documents are held out: for the test always the same ones, for validation by `seed`.
    """
    if len(documents) == 1:
        text = content(documents[0])
        shares = (1 - test - validation, 1 - test)
        first, second = (next_character(text, round(len(text) * share)) for share in shares)
        return Divided(((text[:first],), (text[first:second],), (text[second:],)), folder, who)
    left = list(range(len(documents)))
    sizes = [len(document) for document in documents]
    tested = _drawn(left, sizes, test, np.random.default_rng(0))
    left = [number for number in left if number not in tested]
    validated = _drawn(left, sizes, validation, np.random.default_rng(seed))
    parts = ([number for number in left if number not in validated], validated, tested)
    trained, held_out, last = ([documents[number] for number in sorted(part)] for part in parts)
    return Divided((trained, held_out, last), folder, who)


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
