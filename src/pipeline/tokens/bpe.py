"""Byte-pair encoding: frequent sequences of bytes as tokens, learned from the training texts.

Sennrich, Haddow and Birch, "Neural machine translation of rare words with subword units", 2016, section 3.2; over bytes
as in Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.2. The library tokenizers
learns and applies it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.tokens import Content, Tokens, characters, check_size, gathered

HANDED = 1 << 16  # characters of a piece for the library: its own cost grows with a text's length
TOGETHER = 16  # such pieces, which the library's threads share
WORD = re.compile(r"(?<=\S)[^\S\x1c-\x1f]")  # begins with whitespace, in the library's sense too


@dataclass(frozen=True)
class Bpe(Tokens):
    """`merges`: the learned merges, as the library writes them (JSON)."""

    kind: ClassVar[str] = "bpe"

    merges: str

    @cached_property
    def library(self) -> Any:
        """The tokenizers.Tokenizer."""
        import tokenizers

        return tokenizers.Tokenizer.from_str(self.merges)

    @property
    def size(self) -> int:
        return int(self.library.get_vocab_size())

    def encode(self, text: Content, who: str, folder: Path | None = None) -> np.ndarray:
        return gathered(self._pieces(text, who), self.size, folder, who)

    def _pieces(self, text: Content, who: str) -> Iterator[np.ndarray]:
        left = pieces_of(characters(text, who))
        while some := list(islice(left, TOGETHER)):
            for found in self.library.encode_batch_fast(some, add_special_tokens=False):
                yield np.array(found.ids)

    def decode(self, tokens: np.ndarray) -> bytes:
        return b"".join(self._bytes[token] for token in np.asarray(tokens))

    @cached_property
    def _bytes(self) -> list[bytes]:
        of_letter = {letter: byte for byte, letter in enumerate(byte_letters())}
        words = sorted(self.library.get_vocab().items(), key=lambda item: item[1])
        return [bytes(of_letter[letter] for letter in word) for word, _ in words]

    def lengths(self) -> np.ndarray:
        return np.array([len(one) for one in self._bytes], np.int64)

    def plain(self) -> dict[str, Any]:
        return {"kind": self.kind, "merges": json.loads(self.merges)}


def learned(texts: Sequence[Content], size: int, who: str) -> Bpe:
    """Merges learned from these texts, until there are `size` tokens or no two stand side by side in a word twice.

    Words are not merged with each other. Raises UserError.
    """
    check_size("bpe", size)
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, initial_alphabet=byte_letters(), show_progress=False, special_tokens=[]
    )
    library.train_from_iterator((piece for text in texts for piece in pieces_of(characters(text, who))), trainer)
    return Bpe(library.to_str())


def from_plain(plain: Mapping[str, Any]) -> Bpe:
    """With the merges that were kept."""
    return Bpe(json.dumps(plain["merges"]))


def pieces_of(parts: Iterable[str]) -> Iterator[str]:
    """A text in pieces that begin where a word does, so that no word is cut and the tokens stay the same.

    A word that is longer is not cut either: text without any whitespace is held in memory whole.
    """
    rest, seen = "", 0
    for part in parts:
        begin, rest = 0, rest + part
        while word := WORD.search(rest, max(begin + HANDED, seen)):
            yield rest[begin : word.start()]
            begin = word.start()
        rest = rest[begin:]
        seen = len(rest)
    if rest:
        yield rest


def byte_letters() -> list[str]:
    """The letter that stands for each byte in the library's files: itself where it can be printed (GPT-2's table)."""
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printed else chr(next(others)) for byte in range(256)]
