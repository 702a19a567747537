"""Swept keys on which no result depends, such as how often a checkpoint is written: they tell runs apart, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.passwords import without_passwords
from pipeline.runs.records import read_config

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

ABSENT = object()  # for a key that a config has not


def told_apart_by(experiment: Experiment, swept: Iterable[str]) -> dict[str, Any]:
    """The values, as a run's config has them, of those swept keys that the hash of its config leaves out."""
    keys = {override.lstrip("+~").partition("@")[0] for override in swept}
    deciding = experiment.deciding() if keys else {}
    found = {key: _at(experiment.config, key) for key in sorted(keys) if _at(deciding, key) is ABSENT}
    return {key: without_passwords(value) for key, value in found.items() if value is not ABSENT}


def has(run: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether a run was started with these values. A key that it has not was null."""
    if not wanted:
        return True
    try:
        config = _config(run, (run / "config.yaml").stat().st_mtime_ns)
    except OSError:
        return False
    found = {key: _at(config, key) for key in wanted}
    return {key: None if value is ABSENT else value for key, value in found.items()} == wanted


@lru_cache(maxsize=10_000)
def _config(run: Path, _written: int) -> dict[str, Any]:
    return read_config(run)


def _at(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, or ABSENT."""
    found: Any = config
    for name in key.replace("/", ".").split("."):
        found = found.get(name, ABSENT) if isinstance(found, Mapping) else ABSENT
    return found
