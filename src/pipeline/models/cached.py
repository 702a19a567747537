"""A model of tokens that keeps the keys and values of what it has seen: what a step of generation needs."""

from __future__ import annotations

from typing import Any, Protocol


class Cached(Protocol):
    """A decoder with a cache of keys and values, in which each row of a batch has its own position.

    Integers are int32 of the framework at work. In Keras both run inside a compiled function, and the cache is arrays;
    in torch positions and lengths lie on the CPU, and the cache is changed in place.
    """

    def prefill(self, tokens_BT: Any, lengths_B: Any, /) -> tuple[Any, Any]:
        """Logits (B, V) after each row's last token, and the cache. Rows may be filled up at the end with any token."""

    def step(self, tokens_B: Any, at_B: Any, cache: Any, /) -> tuple[Any, Any]:
        """Logits (B, V) after one token more in each row, the one at position `at` (from 0), and the cache."""
