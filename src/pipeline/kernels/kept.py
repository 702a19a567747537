"""What takes long to make and depends on nothing but its hash: kept in the cache folder, as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pipeline.datasets.fetch import CACHE_VARIABLE, cache_root
from pipeline.errors import UserError


def kept(name: str, decides: Iterable[bytes], make: Callable[[], Any]) -> Any:
    """What `make` returns, which JSON can write, or has returned for the same `decides` before.

    Raises UserError where the cache folder cannot be written.
    """
    file = cache_root(None) / "kernels" / f"{name}-{digest(decides)[:16]}.json"
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):  # none, or not a whole one
        made = make()
    try:
        _write(file, json.dumps(made))
    except OSError as error:
        raise UserError(
            f"cache folder {file.parent}: cannot write: {error.strerror or error}; name another with {CACHE_VARIABLE}"
        ) from error
    return made


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of several texts, each with its length."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def _write(file: Path, text: str) -> None:
    """Under another name first, so that no other process reads half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(name).replace(file)
