"""Other data for a saved run: a dataset that the user names, read as the data were that the model was trained on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.contracts.physics import Problem
from pipeline.errors import UserError
from pipeline.runs.choices import nearest
from pipeline.runs.start import CARD
from pipeline.spec import Config, named_object

FIXED = ("dataset.normalise", "dataset.context", "dataset.tokens")  # what the model was made for, on any dataset
SOLVED = (
    "stage=evaluate with a run that solved a problem: its errors are in its result.json; "
    "stage=predict stage.points=points.csv gives its values at any points"
)


def other_dataset(folder: Path, saved: Config, config: Config, overridden: Collection[str]) -> dict[str, Any]:
    """The dataset of `config` for the run in `folder`. What it leaves at its default is as in the `saved` config.

    Of another spec that holds for what is fixed alone: a share of one may be a number of examples of another. Raises
    UserError where either is a problem.
    """
    before, now = saved.get("dataset") or {}, dict(config["dataset"])
    if _is_problem(before):
        raise UserError(SOLVED)
    if _is_problem(now):
        name = nearest("dataset", now)[0]
        raise UserError(f"dataset={name} with stage=evaluate: is a problem, which has no examples; choose data")
    kept = [key.partition(".")[2] for key in FIXED]
    if before.get("_target_") == now["_target_"]:
        kept += _left_out(before, now, overridden)
    now |= {name: _with(before[name], now[name]) for name in kept if name in before and name in now}
    if "tokens" in before and "tokens" in now:
        now["tokens"] = str(folder / CARD)
    return now


def _is_problem(dataset: Mapping[str, Any]) -> bool:
    try:
        spec = named_object(str(dataset.get("_target_")), "dataset._target_")
    except UserError:  # of a run with a dataset that is not here; the model may be measured all the same
        return False
    return isinstance(spec, type) and issubclass(spec, Problem)


def _left_out(before: Mapping[str, Any], now: Mapping[str, Any], overridden: Collection[str]) -> Iterator[str]:
    """The settings of one spec that are at their default now, and those that are mappings."""
    fields = named_object(now["_target_"], "dataset._target_").__pydantic_fields__
    for name, value in now.items():
        if f"dataset.{name}" in overridden and not isinstance(value, Mapping):
            continue
        if name == "test" and "dataset.train" in overridden and isinstance(before.get(name), str):
            continue  # of dataset=examples: it belongs to the run's train
        if isinstance(value, Mapping) or (name in fields and _plain(fields[name].default) == value):
            yield name


def _with(before: Any, now: Any) -> Any:
    """What a setting was; of a mapping with what is set now."""
    return {**before, **now} if isinstance(before, Mapping) and isinstance(now, Mapping) else before


def _plain(default: Any) -> Any:
    """A default as a config has it."""
    return list(default) if isinstance(default, tuple) else default
