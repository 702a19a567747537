"""The folder of what is kept between runs and can be had again: fetched data, measured ceilings, compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.errors import UserError
from pipeline.machine.regular_file import as_named

CACHE_VARIABLE = "PIPELINE_CACHE"


def cache_root(configured: str | None) -> Path:
    """The cache folder: as configured (`dataset.cache`), else the environment's, else the user's cache folder."""
    named = configured or os.environ.get(CACHE_VARIABLE)
    if named:
        return as_named(named).absolute()
    import platformdirs

    return platformdirs.user_cache_path("pipeline")


def cannot_write_cache(folder: Path, error: OSError) -> UserError:
    """The message for a folder of the cache that the system refused."""
    return UserError(
        f"cache folder {folder}: cannot write: {error.strerror or error}; name another with {CACHE_VARIABLE}"
    )


def written_folder(name: str) -> Path:
    """A folder of the cache, made if need be. Raises UserError where nothing can be written into it."""
    found = cache_root(None) / name
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write_cache(found, error) from error
    if not os.access(found, os.W_OK):
        raise cannot_write_cache(found, PermissionError("Permission denied"))
    return found
