"""Which examples a metric of a run is of, and which code measured it: numbers of others are not the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.experiment.metrics import node_of
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


def asked_for(run: Path, config: Mapping[str, Any], metric: str) -> Mapping[str, Any] | None:
    """The node of training.metrics that a metric of a test comes from, without what is unset; `config`: the run's, by
    dotted keys.

    None where its task measures it.
    """
    split, _, name = metric.partition("/")
    found = config.get("training.metrics")
    if HELD_OUT.get(split) != "test" or not isinstance(found, list | tuple) or not found:
        return None
    nodes = [node_of(one) if isinstance(one, str) else one for one in found]
    # The receipt has their names, since a class may give itself another. One of an earlier version does not.
    names = read_json(run / "receipt.json").get("metrics") or [_called(node) for node in nodes]
    node = dict(zip(names, nodes, strict=False)).get(name)
    return None if node is None else {key: value for key, value in node.items() if value is not None}


def _called(node: Mapping[str, Any]) -> str:
    """What a metric is called by its config, as experiment.metrics.name_of has it of most metrics."""
    module, _, cls = str(node.get("_target_")).rpartition(".")
    given = node.get("name") or node.get("called") or str(node.get("metric", "")).rpartition(".")[2]
    return str(given or (module.rpartition(".")[2] if module.startswith("pipeline.") else cls.lower()))


def user_modules(run: Path, config: Mapping[str, Any], metric: str) -> set[str]:
    """The modules of the user's that say what a metric is: of the metric's class, or of the loss's; `config`: the
    run's, by dotted keys."""
    node = asked_for(run, config, metric) or {}
    targets = [node.get("_target_"), config.get("loss") if metric.endswith("/loss") else None]
    return {str(target).rpartition(".")[0] for target in targets if target}


def measured_otherwise(runs: Iterable[Path], metric: str, own: Collection[str] = ()) -> list[str]:
    """The modules that say what a metric is, those of this package and the user's `own`, which were edited between
    these runs."""
    measuring = MEASURING if metric.partition("/")[0] in SPLITS else TIMING if metric.endswith("_per_s") else ()
    inside = tuple(f"{module}." for module in measuring)
    hashes: dict[str, set[str]] = {}
    for text in dict.fromkeys(_text_of(run / "code.json") for run in runs):  # most runs have the same
        for module, sha256 in object_of(text).items():
            if f"{module}.".startswith(inside) or module in own:
                hashes.setdefault(module.removeprefix("pipeline."), set()).add(sha256)
    return [module for module, found in hashes.items() if len(found) > 1]


def _text_of(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""
