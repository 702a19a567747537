"""A saved config in the words of the command line: which choices and values differ from the defaults."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.cli.conf_path import conf_path
from pipeline.errors import shown
from pipeline.runs.records import loaded
from pipeline.spec import Config

NOT_SHOWN = ("output_dir",)


def changes(config: Config, defaults: Config) -> dict[str, str]:
    """What differs from `defaults`, as overrides: `model: cnn`, `optimizer.learning_rate: 0.01`.

    The stage is always among them: `defaults` have another one. A group that only one of both knows is left out.
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        usual = defaults.get(key)
        if key in NOT_SHOWN or key not in defaults or value == usual:
            continue
        if not isinstance(value, Mapping) or "_target_" not in value:
            found[key] = text_of(value)
            continue
        if not isinstance(usual, Mapping) or usual.get("_target_") != value["_target_"]:
            choice, usual = nearest(key, value)
            found[key] = choice
        found |= {
            f"{key}.{name}": text_of(one) for name, one in value.items() if name not in usual or usual[name] != one
        }
    return found


def nearest(group: str, node: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The choice of conf/<group>/ with this `_target_` that has most of its values, and those values.

    Of a class that no choice names (a user's own) the class itself.
    """
    target = str(node.get("_target_"))
    beside = _beside_choices(conf_path()).get(group) or {}
    fitting = {
        name: {**beside, **one} for name, one in _choices(conf_path() / group).items() if one.get("_target_") == target
    }
    if not fitting:
        return target, {**beside, "_target_": target}

    def differing(name: str) -> tuple[int, str]:
        return sum(key not in fitting[name] or fitting[name][key] != value for key, value in node.items()), name

    best = min(fitting, key=differing)
    return best, fitting[best]


def target_of_stage(name: str) -> object:
    """The `_target_` of a stage; None where no file has the name."""
    return _choices(conf_path() / "stage").get(name, {}).get("_target_")


def choices_beside(config: Config, given: Collection[str]) -> list[str]:
    """The choices that a saved config was made with, as overrides, without those of the groups in `given`.

    Without classes that no choice names: those are a user's own.
    """
    found = []
    for group, node in config.items():
        if group in given or not isinstance(node, Mapping) or "_target_" not in node:
            continue
        name, _ = nearest(group, node)
        if name != str(node["_target_"]) and name in _choices(conf_path() / group):
            found.append(f"{group}={name}")
    return found


def class_and_settings(group: str, name: str) -> tuple[str, dict[str, Any]] | None:
    """A choice's `_target_`, and the settings in which it differs from the other choices of that class.

    None for what is not a choice of conf/<group>/.
    """
    every = _choices(conf_path() / group)
    node = every.get(name, {})
    if "_target_" not in node:
        return None
    beside = [one for other, one in every.items() if other != name and one.get("_target_") == node["_target_"]]
    differing = {
        key: value for key, value in node.items() if any(key not in one or one[key] != value for one in beside)
    }
    return str(node["_target_"]), differing


def names_are_users(key: str) -> bool:
    """Whether a setting is a mapping of the user's names (`stage.arguments`), which the YAML of a choice has empty, or
    lies in one."""
    group, name = f"{key}.".split(".")[:2]
    return any(one.get(name) == {} for one in _choices(conf_path() / group).values())


def text_of(value: Any) -> str:
    """A setting as YAML writes it, a text without quotes."""
    return value if isinstance(value, str) else shown(value)


@cache
def _beside_choices(folder: Path) -> Mapping[str, Any]:
    """What config.yaml itself sets: `model` has keys beside those of the choice."""
    found = loaded((folder / "config.yaml").read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if isinstance(value, Mapping)}


@cache
def _choices(folder: Path) -> dict[str, Mapping[str, Any]]:
    """The values of each choice of a group, with those of the choices that it builds on.

    Without files that are not YAML: whoever chooses one is refused it when the config is composed.
    """
    files = {path.stem: _values(path) for path in sorted(folder.glob("*.yaml"))}
    return {name: _merged(name, files, folder.name) for name, one in files.items() if isinstance(one, Mapping)}


def _values(path: Path) -> Any:
    """What a file of the configuration holds; None where it cannot be read."""
    try:
        return loaded(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _merged(name: str, files: Mapping[str, Any], group: str) -> dict[str, Any]:
    node = dict(files[name])
    defaults = node.pop("defaults", None) or ()
    others = {other: file for other, file in files.items() if other != name}  # no circle, in files of the user's
    below = [one for one in defaults if isinstance(one, str) and isinstance(others.get(one), Mapping)]
    merged: dict[str, Any] = {}
    for one in below:
        merged |= _merged(one, others, group)
    inner = node.get(group)
    return merged | dict(inner if isinstance(inner, Mapping) and "_target_" in inner else node)
