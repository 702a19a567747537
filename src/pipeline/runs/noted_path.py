"""Files that hold nothing but a path: its bytes, since a name is not always text of the locale's encoding."""

from __future__ import annotations

import os
from pathlib import Path


def note_path(file: Path, path: Path) -> None:
    """Write `path` to `file`. Raises OSError."""
    file.write_bytes(os.fsencode(path))


def noted_path(file: Path) -> Path:
    """The path in `file`. Raises OSError."""
    return Path(os.fsdecode(file.read_bytes()))
