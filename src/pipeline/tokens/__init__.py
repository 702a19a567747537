"""Tokens: how a text becomes numbers and numbers become text again. One file for each kind.

A text is bytes, and may be larger than memory. Characters and byte pairs need UTF-8 and are made piece by piece; bytes
take any file.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import UserError
from pipeline.machine.unnamed_file import kept

Content = bytes | memoryview  # of a file: as read, or mapped
PIECE = 1 << 20  # bytes of a text that are decoded at once
BYTES = 256  # each is a token of bpe, and all tokens of bytes
OTHER_MARKS = {  # that of UTF-32 begins as that of UTF-16 does
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
KINDS = ("bytes", "characters", "bpe")


class Tokens(ABC):
    """A vocabulary: `kind` names it in a config, `size` says how many tokens there are."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def size(self) -> int:
        """Tokens are the numbers below it."""

    @abstractmethod
    def encode(self, text: Content, who: str, folder: Path | None = None) -> np.ndarray:
        """The tokens (N,) of a text, in the smallest unsigned dtype, read-only. Raises UserError, beginning with `who`.

        `folder`: where many of them are written to a temporary file, which is mapped. None: all are kept in memory.
        """

    @abstractmethod
    def decode(self, tokens: np.ndarray) -> bytes:
        """The text of tokens (N,)."""

    @abstractmethod
    def lengths(self) -> np.ndarray:
        """How many bytes each token stands for, (size,) int64."""

    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """What `from_plain` needs to make it again, ready for JSON."""


def check_size(kind: str, size: int) -> None:
    """Refuse a number of tokens that no text could give. Raises UserError."""
    if kind == "bpe" and size <= BYTES:
        raise UserError(f"dataset.vocabulary={size}: the {BYTES} bytes are tokens already; give {BYTES + 1} or more")


def learned(kind: str, texts: Sequence[Content], size: int, who: str) -> Tokens:
    """The vocabulary of these training texts. `size`: how many tokens, where that is a choice. Raises UserError."""
    made: Tokens = _module(kind).learned(texts, size, who)
    return made


def from_plain(plain: Mapping[str, Any]) -> Tokens:
    """The vocabulary that `plain` describes. Raises KeyError where it describes none."""
    made: Tokens = _module(str(plain["kind"])).from_plain(plain)
    return made


def _module(kind: str) -> Any:
    """Imported by names that the code's hash follows. Raises KeyError for a kind that is none."""
    from pipeline.tokens import bpe, byte, character

    return {"bytes": byte, "characters": character, "bpe": bpe}[kind]


def characters(text: Content, who: str, before: int = 0) -> Iterator[str]:
    """A text as characters, piece by piece. Raises UserError that says where it is not UTF-8.

    `before`: bytes of its file that come before it.
    """
    begin = 0
    while begin < len(text):
        end = next_character(text, begin + PIECE)
        try:
            piece = str(text[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            place = begin + error.start
            if other := _other_encoding(text):
                raise UserError(
                    f"{who}: {other}, by its byte-order mark, and not UTF-8; convert it: iconv -f {other} -t UTF-8 "
                    "<the file> > <a new one>"
                ) from error
            raise UserError(
                f"{who}: not UTF-8 at byte {before + place:,} (line {_line(text, place):,}): 0x{text[place]:02x}; "
                "dataset.tokens=bytes takes any file"
            ) from error
        yield piece
        begin = end


def _other_encoding(text: Content) -> str | None:
    """Which encoding of Unicode the byte-order mark at the beginning is of, where that is not UTF-8."""
    begin = bytes(text[:4])
    return next((name for mark, name in OTHER_MARKS.items() if begin.startswith(mark)), None)


def next_character(text: Content, place: int) -> int:
    """`place`, moved to where the next UTF-8 character begins (none has more than 4 bytes), or to the end."""
    last = min(place + 3, len(text))
    while place < last and text[place] & 0xC0 == 0x80:
        place += 1
    return min(place, len(text))


def _line(text: Content, place: int) -> int:
    """The line, counted from 1, of the byte at `place`."""
    pieces = (bytes(text[begin : min(begin + PIECE, place)]) for begin in range(0, place, PIECE))
    return 1 + sum(piece.count(b"\n") for piece in pieces)


def gathered(pieces: Iterable[np.ndarray], size: int, folder: Path | None, who: str) -> np.ndarray:
    """Tokens below `size`, made piece by piece, as `encode` gives them."""
    dtype = smallest(size)
    return np.frombuffer(kept((piece.astype(dtype).data for piece in pieces), folder, who), dtype)


def smallest(size: int) -> np.dtype[Any]:
    """The smallest unsigned dtype that holds every token of a vocabulary."""
    return np.min_scalar_type(size - 1)
