"""The small data sets that come with scikit-learn as files: they need no network."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pipeline.errors import UserError


def file(name: str, dataset: str) -> Path:
    """Where scikit-learn keeps a file. Raises UserError where it is not installed, or the file is not there.

    scikit-learn is not imported, which takes about a second and brings SciPy along.
    """
    package = importlib.util.find_spec("sklearn")
    places = package.submodule_search_locations if package else None
    if not places:
        raise UserError(f"dataset={dataset}: it comes with scikit-learn, which is not installed")
    path = Path(places[0]) / "datasets" / "data" / name
    if not path.is_file():
        raise UserError(f"dataset={dataset}: {path} is not there; reinstall scikit-learn")
    return path
