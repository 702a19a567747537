"""Patterns of weights: a weight or a layer by its path, such as `blocks.0`, `conv*`, `*.bias` (`*` is any text, dots
too)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pipeline.errors import UserError, cut, nearest


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
            raise _matches_none(key, pattern, every, what)
    return tuple(name for name in every if any(matches(name, pattern) for pattern in patterns))


def all_but(left_out: Iterable[str], names: Iterable[str]) -> str:
    """Patterns of all layers that these weights lie in but those `left_out`, as a key takes them."""
    every, fewer = dict.fromkeys(name.partition(".")[0] for name in names), set(left_out)
    return f"[{','.join(layer for layer in every if layer not in fewer)}]"


def _matches_none(key: str, pattern: str, names: Sequence[str], what: str) -> UserError:
    """With the layer or the name that the pattern is like, where there is one, else with more of the names."""
    paths = {".".join(parts[:end]) for name in names for parts in [name.split(".")] for end in range(1, len(parts) + 1)}
    near = _mended(pattern, names) or nearest(pattern, paths)
    hint = f" (did you mean {near}?)" if near else ""
    return UserError(
        f"{key}=[{cut(pattern)}]: matches no {what}{hint}; this model has {cut(', '.join(names), 200 if near else 600)}"
    )


def _mended(pattern: str, names: Sequence[str]) -> str | None:
    """The pattern with each part that no name has as the one it is like: `*.querry` as `*.query`. None if that matches
    no name either."""
    words = {part for name in names for part in name.split(".")}
    parts = []
    for part in pattern.split("."):
        known = any(fnmatchcase(word, part) for word in words)
        word = part.strip("*")
        parts.append(part if known else part.replace(word, nearest(word, words) or word))
    mended = ".".join(parts)
    return mended if any(matches(name, mended) for name in names) else None
