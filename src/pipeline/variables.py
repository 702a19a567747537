"""What a config takes from the environment: `${oc.env:NAME}`, which may be a password.

The plain config keeps it as it was typed, and so does whatever is written or sent: config.yaml, a job file, MLflow. It
is filled in where a spec is built and where the config is hashed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import Lacking

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
KEPT = re.compile(rf"\$\{{oc\.env:({NAME})\}}")


def filled(value: Any, key: str) -> Any:
    """A plain value with what the environment holds in place of `${oc.env:NAME}`. Raises Lacking naming `key`."""
    if isinstance(value, str) and "${oc.env:" in value:
        return KEPT.sub(lambda found: _variable(found, key), value)
    if isinstance(value, dict):
        return {name: filled(item, f"{key}.{name}" if key else str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, f"{key}.{place}") for place, item in enumerate(value)]
    return value


def names_in(value: Any) -> list[str]:
    """The variables that `filled` looks up in a plain value, each once."""
    if isinstance(value, str):
        return list(dict.fromkeys(KEPT.findall(value)))
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return list(dict.fromkeys(name for item in items for name in names_in(item)))


def is_kept(text: str) -> bool:
    """Whether every `${` of a text is one that `filled` fills in."""
    return "${" not in KEPT.sub("", text)


def _variable(found: re.Match[str], key: str) -> str:
    if found[1] not in os.environ:
        raise Lacking(f"{key}={found[0]}: the environment has no {found[1]}")
    return os.environ[found[1]]
