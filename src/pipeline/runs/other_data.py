"""Other data for a saved run: a dataset that the user names, read as the data were that the model was trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.runs.start import CARD
from pipeline.spec import Config, named_object

FIXED = ("dataset.normalise", "dataset.context", "dataset.tokens")  # what the model was made for, on any dataset


def other_dataset(folder: Path, saved: Config, config: Config, overridden: Collection[str]) -> dict[str, Any]:
    """The dataset of `config` for the run in `folder`. What it leaves at its default is as in the `saved` config.

    Of another spec that holds for what is fixed alone: a share of one may be a number of examples of another.
    """
    before, now = saved.get("dataset") or {}, dict(config["dataset"])
    kept = [key.partition(".")[2] for key in FIXED]
    if before.get("_target_") == now["_target_"]:
        defaults = _defaults(now["_target_"])
        kept += [name for name in now if f"dataset.{name}" not in overridden and _plain(defaults, name) == now[name]]
    now |= {name: before[name] for name in kept if name in before and name in now}
    if "tokens" in before and "tokens" in now:
        now["tokens"] = str(folder / CARD)
    return now


def _defaults(target: str) -> dict[str, Any]:
    spec = named_object(target, "dataset._target_")
    return {field.name: field.default for field in dataclasses.fields(spec)}


def _plain(defaults: Mapping[str, Any], name: str) -> Any:
    """A default as a config has it."""
    value = defaults.get(name, dataclasses.MISSING)
    return list(value) if isinstance(value, tuple) else value
