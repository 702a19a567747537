"""Patterns of weights: a weight or a layer by its path, such as `blocks.0`, `conv*`, `*.bias` (`*` is any text, dots
too)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pipeline.errors import UserError, cut


def matches(name: str, pattern: str) -> bool:
    """Whether a weight's path is a pattern's, or lies in a layer whose path is."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def matching(key: str, patterns: Sequence[str], names: Iterable[str], what: str = "weight") -> tuple[str, ...]:
    """The names that any pattern matches, in their order. `what`: they are of.

    Raises UserError for a pattern that matches none.
    """
    every = list(names)
    for pattern in patterns:
        if not any(matches(name, pattern) for name in every):
            raise UserError(f"{key}=[{cut(pattern)}]: matches no {what}; this model has {cut(', '.join(every), 600)}")
    return tuple(name for name in every if any(matches(name, pattern) for pattern in patterns))
