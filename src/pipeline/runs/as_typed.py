"""A saved config with runs by their names, as a command takes them: what it was made with are paths of their files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILES = re.compile(r"/artifacts/model/(weights\.npz|adapters\.npz|card\.json)$")


def with_names(config: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The config, at any depth. A run in another folder than `root`, that of the runs, is named by its own folder."""
    return {key: _named(value, root.absolute()) for key, value in config.items()}


def _named(value: Any, root: Path) -> Any:
    if isinstance(value, Mapping):
        return with_names(value, root)
    if not isinstance(value, str) or "/" not in value:
        return value
    folder = Path(FILES.sub("", value))
    return folder.name if folder.parent == root else str(folder) if FILES.search(value) else value
