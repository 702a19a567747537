"""What the command line names and there is not."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import UserError, nearest


def unknown(name: str, what: str, names: Sequence[str]) -> UserError:
    """`name: no such <what>`, the nearest of `names` where one is near, and all of them in their order."""
    near = nearest(name, names)
    hint = f" (did you mean {near}?)" if near else ""
    return UserError(f"{name}: no such {what}{hint}; choose from {'; '.join(names)}")
