"""Saved runs: the experiment that a run was, and which overrides still make sense on top of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.journal import read_config
from pipeline.runs import find_run

# What belongs to the new run, always; and what may be chosen anew for a finished model.
OWN = ("stage", "run", "output_dir", "tracking", "sweep", "name", "loader", "profiler")
RECHOOSABLE = ("backend", "device", "precision")
SINGLE = ("training.evaluation_batch_size", "training.metrics", "dataset.cache", "dataset.folder")


def config_of(config: Mapping[str, Any], overridden: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """The folder of the run that `config` starts from, and that run's config with what the user chose anew.

    `overridden`: the keys that the user set, as written (`backend`, `device.name`). Raises UserError for one that a
    saved model has fixed.
    """
    reference = config["run"]
    stage = config["stage"]["_target_"].rpartition(".")[2].lower()
    if not reference:
        raise UserError(f"run=null with stage={stage}: name the saved run, by its id, its folder or latest")
    folder = find_run(Path(str(config["output_dir"])), str(reference), holding="artifacts/model/weights.npz")
    merged = read_config(folder)
    if not merged:
        raise UserError(f"run={reference}: {folder / 'config.yaml'} is missing or damaged")
    merged |= {key: config[key] for key in OWN}
    for key in overridden:
        group = key.partition(".")[0].partition("@")[0]
        if group in OWN:
            continue
        if group in RECHOOSABLE:
            merged[group] = config[group]
        elif key in SINGLE:
            merged[group] = {**merged[group], key.partition(".")[2]: config[group][key.partition(".")[2]]}
        else:
            raise UserError(
                f"{key}={_value(config, key)} with stage={stage}: run {folder.name} was made with "
                f"{key}={_value(merged, key)} and brings it along; "
                f"what can be chosen anew is {', '.join((*RECHOOSABLE, *SINGLE))}"
            )
    return folder, merged


def _value(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key; of a group, the choice."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    if isinstance(node, Mapping):
        return str(node.get("_target_", node)).rpartition(".")[2].lower()
    return node
