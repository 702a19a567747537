"""Characters as tokens: the alphabet of a text, in the order of Unicode."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import UserError
from pipeline.tokens import Content, Tokens, characters, gathered


class UnknownCharacter(UserError):
    """A text has a character that the alphabet lacks."""

    def __init__(self, who: str, character: str, place: int, size: int) -> None:
        self.made_of = who, character, place, size
        self.character, self.lacking = character, f"is not among the {size:,} that the model knows"
        super().__init__(f"{who}: the character {character!r} at {place:,} {self.lacking}")

    def __reduce__(self) -> tuple[type[UnknownCharacter], tuple[str, str, int, int]]:
        return UnknownCharacter, self.made_of


@dataclass(frozen=True)
class Characters(Tokens):
    """`alphabet`: the characters, each once, sorted."""

    kind: ClassVar[str] = "characters"

    alphabet: str

    @property
    def size(self) -> int:
        return len(self.alphabet)

    @cached_property
    def table(self) -> np.ndarray:
        """The token of each number in Unicode; `size` where the alphabet lacks it."""
        table = np.full(sys.maxunicode + 1, self.size, np.min_scalar_type(self.size))
        table[code_points(self.alphabet)] = np.arange(self.size)
        return table

    def encode(self, text: Content, who: str, folder: Path | None = None) -> np.ndarray:
        return gathered(self._pieces(text, who), self.size, folder, who)

    def _pieces(self, text: Content, who: str) -> Iterator[np.ndarray]:
        before, left = 0, characters(text, who)
        for piece in left:
            found = code_points(piece)
            tokens = self.table[found]
            unknown = np.flatnonzero(tokens == self.size)
            if len(unknown):
                for _ in left:
                    pass  # what is not UTF-8 is named first
                raise UnknownCharacter(who, chr(found[unknown[0]]), before + int(unknown[0]), self.size)
            yield tokens
            before += len(piece)

    def decode(self, tokens: np.ndarray) -> bytes:
        return "".join(self.alphabet[token] for token in tokens).encode()

    def lengths(self) -> np.ndarray:
        return np.array([len(character.encode()) for character in self.alphabet], np.int64)

    def plain(self) -> dict[str, Any]:
        return {"kind": self.kind, "alphabet": self.alphabet}


def learned(texts: Sequence[Content], size: int, who: str) -> Characters:
    """The characters of all of these texts."""
    found = np.zeros(sys.maxunicode + 1, bool)
    for text in texts:
        for piece in characters(text, who):
            found[code_points(piece)] = True
    return Characters("".join(map(chr, np.flatnonzero(found))))


def from_plain(plain: Mapping[str, Any]) -> Characters:
    """With the alphabet that was kept."""
    return Characters(str(plain["alphabet"]))


def code_points(text: str) -> np.ndarray:
    """The characters' numbers in Unicode, (N,) uint32."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
