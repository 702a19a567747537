"""The errors of Hydra, OmegaConf and the YAML reader as one message: value, key, choices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli.conf_path import conf_path
from pipeline.cli.help import choices
from pipeline.errors import UserError, bad_choice, bad_key, cut, nearest

SHORT = {"lr": "learning_rate", "bs": "batch_size"}  # as other programs call them
NOT_OURS = {("hydra/launcher", "basic")}  # a choice that Hydra has and the pipeline refuses


def explained(error: Exception, overrides: Sequence[str]) -> UserError:
    """Hydra's, OmegaConf's or the YAML reader's error as one message: value, key, choices."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return UserError(f"{mark.name}, line {mark.line + 1}: not YAML: {error.problem}")
    if isinstance(error, RecursionError):
        words = cut(" ".join(overrides), 200)
        return UserError(f"{words}: nested too deep; see whether the `defaults` of its files name each other")
    if isinstance(error, UnicodeDecodeError):
        return UserError(f"a file of the configuration is not text in UTF-8 ({error})")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        refusal = _of_choice(error.missing_cfg_file, error.options or [], overrides)
        if refusal is not None:
            return refusal
    refusal = _of_key(error, overrides)
    if refusal is not None:
        return refusal
    reason = cut(" ".join(str(error).split()), 300)
    if reason and isinstance(error, HydraException | OmegaConfBaseException):
        return UserError(reason)
    return UserError(f"{cut(' '.join(overrides), 200)}: cannot be composed ({type(error).__name__}: {reason})")


def _of_choice(missing: str, options: Sequence[str], overrides: Sequence[str]) -> UserError | None:
    """Where a group has no such choice; None where the file that is missing is of no group."""
    group, choice = _typed_choice(missing, overrides)
    if not group:
        return None
    ours = [one for one in options if (group, one) not in NOT_OURS]
    refusal = bad_choice(group, choice, ours or choices([conf_path()]).get(group, []))
    return UserError(f"{refusal}{_of_own_data(choice)}") if group == "dataset" else refusal


def _of_key(error: Exception, overrides: Sequence[str]) -> UserError | None:
    """Where a key cannot be set or does not exist; None where the error is about no key."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    key = str(getattr(cause, "full_key", None) or getattr(cause, "key", None) or "")
    if not key:
        found = re.search(r"Could not (?:override|find) '([^']+)'", str(error))
        key = found[1] if found else ""
    if isinstance(cause, TypeError) and "Cannot merge" in str(cause):
        typed = next((text for text in overrides if text.lstrip("+").startswith(f"{key}=")), key)
        return UserError(f"{typed}: should be a {'list' if 'with ListConfig' in str(cause) else 'mapping'}")
    if not key:
        return None
    parent = getattr(cause, "parent_node", None)
    if isinstance(parent, DictConfig):
        return _of_mapping(key, parent, overrides)
    return UserError(f"{cut(key)}: no such key; `python -m pipeline --help` lists the groups")


def _of_mapping(key: str, parent: DictConfig, overrides: Sequence[str]) -> UserError:
    """Where a mapping has no such key: those that it has."""
    prefix = key.rpartition(".")[0]
    target = str(parent["_target_"]) if "_target_" in list(parent) else ""  # a null has no keys, and no get()
    if (said := _not_written(key, target)) is not None:
        return UserError(said)
    names = [str(name) for name in parent if name not in ("hydra", "_target_")]
    names += [] if prefix else ["experiment"]  # which composes a config and is not in it
    if not names and "." in prefix:  # a mapping of a user's own spec
        return UserError(f"{cut(key)}: no such key yet; +{cut(key)}=<value> adds it")
    here = [f"{prefix}.{name}" if prefix else name for name in names]
    near = nearest(key, here) if prefix else None
    elsewhere = _of_stage(key, overrides) or _elsewhere(key, [near] if near else [])
    return bad_key(key, here, elsewhere)


def _typed_choice(missing: str, overrides: Sequence[str]) -> tuple[str, str]:
    """The group and the choice of a file that Hydra misses, also where what was typed as the choice is a path."""
    for word in overrides:
        group, _, choice = word.partition("=")
        if choice and f"{group}/{choice}" == missing:
            return group, choice
    group, _, choice = missing.rpartition("/")
    return group, choice


def _of_own_data(path: str) -> str:
    """How the user's own data are chosen, where a path of theirs was typed in place of a dataset; else nothing."""
    if not Path(path).exists():
        return ""
    if Path(path).is_dir():
        return f"; a folder of images is dataset=image_folder dataset.folder={path}"
    if path.endswith(".npz"):
        return f"; arrays of yours are dataset=npz dataset.file={path}"
    return f"; a text of yours is dataset=text dataset.path={path}"


def as_setting(flag: str) -> str:
    """What sets a key that was written as a flag (`--epochs`), in words; empty where there is none."""
    name = flag.lstrip("-").partition("=")[0].replace("-", "_")
    if name in choices([conf_path()]) or name == "experiment":
        return f"; a choice is written {name}=<choice>"
    if name in yaml.safe_load((conf_path() / "config.yaml").read_text(encoding="utf-8")):
        return f"; a setting is written {name}=<value>"
    found = re.findall(r"\w+\.\w+", _elsewhere(name))
    return f"; a setting is written {' or '.join(f'{key}=<value>' for key in found)}" if found else ""


def _elsewhere(key: str, near: Sequence[str] = ()) -> str:
    """Which choices have such a key, or that it is a group, in words, by the files of the configs.

    `near`: similar keys of the same group, which come before those of other groups.
    """
    group, _, name = key.rpartition(".")
    if not re.fullmatch(r"\w+", name):
        return ""
    name = name if group else SHORT.get(name, name)
    every = choices([conf_path()])
    if name in every:
        return f"{name}=<choice> is a group"
    having: dict[str, list[str]] = {}
    for one in [group] if group else [one for one in every if "/" not in one and one != "experiment"]:
        block = rf"{one}:\n(?:  .*\n)*?  "  # in a file that sets other groups too
        line = re.compile(rf"^(?:{block})?{name}:", re.MULTILINE)
        files = ((choice, conf_path() / one / f"{choice}.yaml") for choice in every.get(one, ()))
        having[one] = [choice for choice, file in files if line.search(file.read_text(encoding="utf-8"))]
    if not group:
        there = [f"{one}.{name}" for one, found in having.items() if found and one != "stage"]
        if not there and having["stage"]:
            there = [f"stage.{name} of stage={', '.join(having['stage'])}"]
        return f"did you mean {' or '.join([*near, *there])}?" if there else ""
    found = having[group]
    if found:
        return f"{group}={', '.join(found)} ha{'s' if len(found) == 1 else 've'} it"
    return "" if name in SHORT else _elsewhere(name, near)  # a group's own message knows its names


def _of_stage(key: str, overrides: Sequence[str]) -> str:
    """That the stage which was typed has a key of that name, in words: other choices of the key's group may be refused
    there."""
    typed = [word.removeprefix("stage=") for word in overrides if word.startswith("stage=")]
    group, _, name = key.rpartition(".")
    file = conf_path() / "stage" / f"{typed[-1]}.yaml" if typed else None
    if not group or group == "stage" or file is None or not file.is_file():
        return ""
    has = name in (yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    return f"stage={typed[-1]} has stage.{name}" if has else ""


def _not_written(key: str, target: str) -> str | None:
    """What to say of a field of a user's own spec that the YAML of its choice does not have; None for any other key."""
    from pipeline.spec import fields_of

    node, _, name = key.rpartition(".")
    if target.startswith("pipeline.") or name not in fields_of(target, node):
        return None
    cls = target.rpartition(".")[2]
    return (
        f"{cut(key)}: {cls} has such a field and the YAML of this choice does not set it; +{cut(key)}=<value> sets it, "
        f"or a line `{name}: <value>` in that file"
    )
