"""Bytes as tokens: 256 of them. Nothing is learned, and any file can be encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.tokens import BYTES, Content, Tokens


@dataclass(frozen=True)
class Bytes(Tokens):
    """Each byte is its own token."""

    kind: ClassVar[str] = "bytes"

    @property
    def size(self) -> int:
        return BYTES

    def encode(self, text: Content, who: str, folder: Path | None = None) -> np.ndarray:
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: np.ndarray) -> bytes:
        return np.asarray(tokens, np.uint8).tobytes()

    def lengths(self) -> np.ndarray:
        return np.ones(BYTES, np.int64)

    def plain(self) -> dict[str, Any]:
        return {"kind": self.kind}


def learned(texts: Sequence[Content], size: int, who: str) -> Bytes:
    """The same for every text."""
    return Bytes()


def from_plain(plain: Mapping[str, Any]) -> Bytes:
    """The same for every text."""
    return Bytes()
