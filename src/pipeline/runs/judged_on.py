"""Which examples a metric of a run is of, and which code measured it: numbers of others are not the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.machine.regular_file import read_regular
from pipeline.runs.json_files import object_of, read_json

# Settings of a dataset by which the same examples are given otherwise: to be compared all the same.
GIVEN_OTHERWISE = ("dataset.channels", "dataset.layout", "dataset.normalise", "dataset.size")
OTHER_DATA = "other_data"  # than a saved run's: what stage=evaluate has on them
HELD_OUT = {"validation": "validation", "test": "test", OTHER_DATA: "test"}  # a receipt's name of a metric's examples
SPLITS = tuple(HELD_OUT)
MEASURING = ("pipeline.tasks", "pipeline.metrics", "pipeline.losses", "pipeline.stages.measuring")  # with all inside
TIMING = ("pipeline.backends.shared.progress", "pipeline.stages.rates")  # which steps are in a rate


def examples_of(run: Path | None, metric: str) -> str | None:
    """What tells the examples that a metric of a run is of from those of another run; None where nothing does."""
    split = metric.partition("/")[0]
    if run is None or split not in SPLITS:
        return None
    found = read_json(run / "receipt.json").get("held_out")
    return found.get(HELD_OUT[split]) if isinstance(found, dict) else None


def says_which(keys: Iterable[str]) -> list[str]:
    """Those of the settings that may decide which examples a dataset has."""
    return [key for key in keys if key.partition(".")[0] == "dataset" and key not in GIVEN_OTHERWISE]


def measured_otherwise(runs: Iterable[Path], metric: str) -> list[str]:
    """The modules of this package that say what a metric is, and that were edited between these runs."""
    measuring = MEASURING if metric.partition("/")[0] in SPLITS else TIMING if metric.endswith("_per_s") else ()
    inside = tuple(f"{module}." for module in measuring)
    hashes: dict[str, set[str]] = {}
    for text in dict.fromkeys(_text_of(run / "code.json") for run in runs):  # most runs have the same
        for module, sha256 in object_of(text).items():
            if f"{module}.".startswith(inside):
                hashes.setdefault(module.removeprefix("pipeline."), set()).add(sha256)
    return [module for module, found in hashes.items() if len(found) > 1]


def _text_of(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""
