"""Characters as tokens: the alphabet of a text, in the order of Unicode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import UserError
from pipeline.tokens import Content, Tokens, decoded, smallest


@dataclass(frozen=True)
class Characters(Tokens):
    """`alphabet`: the characters, each once, sorted."""

    kind: ClassVar[str] = "characters"

    alphabet: str

    @property
    def size(self) -> int:
        return len(self.alphabet)

    @cached_property
    def points(self) -> np.ndarray:
        """The characters' numbers in Unicode, ascending."""
        return code_points(self.alphabet)

    def encode(self, text: Content, who: str) -> np.ndarray:
        found = code_points(decoded(text, who))
        tokens = np.minimum(np.searchsorted(self.points, found), self.size - 1)
        unknown = np.flatnonzero(self.points[tokens] != found)
        if len(unknown):
            raise UserError(
                f"{who}: the character {chr(found[unknown[0]])!r} at {unknown[0]:,} is not among the "
                f"{self.size} that the model knows"
            )
        return tokens.astype(smallest(self.size))

    def decode(self, tokens: np.ndarray) -> bytes:
        return "".join(self.alphabet[token] for token in tokens).encode()

    def lengths(self) -> np.ndarray:
        return np.array([len(character.encode()) for character in self.alphabet], np.int64)

    def plain(self) -> dict[str, Any]:
        return {"kind": self.kind, "alphabet": self.alphabet}


def learned(texts: Sequence[Content], size: int, who: str) -> Characters:
    """The characters of all of these texts."""
    found: set[str] = set()
    for text in texts:
        found |= set(decoded(text, who))
    return Characters("".join(sorted(found)))


def from_plain(plain: Mapping[str, Any]) -> Characters:
    """With the alphabet that was kept."""
    return Characters(str(plain["alphabet"]))


def code_points(text: str) -> np.ndarray:
    """The characters' numbers in Unicode, (N,) uint32."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
