"""Tokens: how a text becomes numbers and numbers become text again. One file for each kind.

A text is bytes. Characters and byte pairs need UTF-8; bytes take any file.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import UserError

Content = bytes | memoryview  # of a file: as read, or mapped
BYTES = 256  # each is a token of bpe, and all tokens of bytes
MODULES = {"bytes": "byte", "characters": "character", "bpe": "bpe"}  # by kind


class Tokens(ABC):
    """A vocabulary: `kind` names it in a config, `size` says how many tokens there are."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def size(self) -> int:
        """Tokens are the numbers below it."""

    @abstractmethod
    def encode(self, text: Content, who: str) -> np.ndarray:
        """The tokens (N,) of a text, in the smallest unsigned dtype. Raises UserError, which begins with `who`."""

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
    return importlib.import_module(f"pipeline.tokens.{MODULES[kind]}")


def decoded(content: Content, who: str) -> str:
    """A text as characters. Raises UserError that says where it is not UTF-8."""
    text = bytes(content)
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{who}: not UTF-8 at byte {error.start:,} (line {line:,}): 0x{text[error.start]:02x}; "
            "dataset.tokens=bytes takes any file"
        ) from error


def smallest(size: int) -> np.dtype[Any]:
    """The smallest unsigned dtype that holds every token of a vocabulary."""
    return np.min_scalar_type(size - 1)
