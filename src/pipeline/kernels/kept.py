"""What takes long to make and depends on nothing but its hash: kept in the cache folder, as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

from pipeline.machine.cache_folder import cache_root, cannot_write_cache
from pipeline.runs.json_files import write_json


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
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, made)
    except OSError as error:
        raise cannot_write_cache(file.parent, error) from error
    return made


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of several texts, each with its length."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()
