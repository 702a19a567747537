"""The modules that a config may name, which are also those that count as the user's code wherever they lie."""

from __future__ import annotations

import os

ALLOW_VARIABLE = "PIPELINE_MODULES"

_taken: tuple[str, ...] | None = None


def allowed_modules() -> tuple[str, ...]:
    """Packages that a `_target_` may come from. Only the environment extends the list: no config can."""
    return _taken or _listed()


def take() -> tuple[str, ...]:
    """Keep the list as the environment has it now, and return it."""
    global _taken
    _taken = _listed()
    return _taken


def is_listed(name: str) -> bool:
    """Whether the module belongs to this package, or to a package that PIPELINE_MODULES names a module of."""
    return name.partition(".")[0] in {one.partition(".")[0] for one in allowed_modules()}


def _listed() -> tuple[str, ...]:
    extra = os.environ.get(ALLOW_VARIABLE, "").split(",")
    return ("pipeline", *(name.strip() for name in extra if name.strip()))
