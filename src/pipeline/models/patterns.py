"""Patterns of weights: a weight or a layer by its path, such as `blocks.0`, `conv*`, `*.bias` (`*` is any text, dots
too)."""

from __future__ import annotations

from fnmatch import fnmatchcase


def matches(name: str, pattern: str) -> bool:
    """Whether a weight's path is a pattern's, or lies in a layer whose path is."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
