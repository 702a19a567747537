"""Overrides (`key=value`, as on the command line): which keys they set, and what is wrong with them in one message.

Hydra accepts the same key twice, several values outside a grid and new keys with `+`; here the first two are refused,
the third by the specs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString, Transformer
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli.conf_path import conf_path
from pipeline.cli.help import choices
from pipeline.errors import Impossible, UserError, bad_choice, bad_key, cut
from pipeline.machine.device import canonical
from pipeline.spec import LARGEST_INTEGER

SHORT = {"lr": "learning_rate", "bs": "batch_size"}  # as other programs call them
OF_GRIDS = ("launcher", "sweeper")  # of Hydra's own part, what says who runs the cells of a grid
NOT_OURS = {("hydra/launcher", "basic")}  # a choice that Hydra has and the pipeline refuses
LONGEST_KEY = 200
OPEN = ("stage.arguments", "stage.data_arguments", "stage.trainer", "stage.fit", "dataset.arguments")  # any key fits in
SCIENTIFIC = re.compile(r"(?<![\w.+-])-?(\d+(\.\d*)?|\.\d+)e\+?\d+(?![\w.])", re.IGNORECASE)
NUMBERS = re.compile(r"\[?[\d.e+-]+(,[\d.e+-]+)*\]?", re.IGNORECASE)  # one, several of a grid, or a list
PROSE = ("stage.prompt", "stage.samples.prompt", "stage.stop")  # texts that may hold anything
VALUES_LOOKED_AT = 1000  # of a grid's choices; more of them are numbers, which no choice is


def keys_of(overrides: Sequence[str], groups: Collection[str], *, grid: bool, shows: bool = False) -> list[str]:
    """The keys that are set, without Hydra's own. `groups`: the config's. `shows`: for --cfg, which may show what is
    about grids.

    Raises UserError for a key set twice, for bad syntax, for several values of a key outside a grid, and for what the
    grammar allows and no config here has.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        if any(not isinstance(override.key_or_group, str) or not override.key_or_group for override in parsed):
            raise OverrideParseException(override=" ".join(overrides), message="an override without a key")
    except OverrideParseException as error:
        raise UserError(
            f"{cut(error.override) or repr('')}: not an override{_meant(error.override)}; write key=value, with quotes "
            "round special characters ('key=\"a b\"')"
        ) from error
    keys = [override.key_or_group for override in parsed]
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        values = [cut(one.input_line) for one in parsed if one.key_or_group == twice[0]]
        raise UserError(
            f"{cut(twice[0])}: set {len(values)} times ({', '.join(values)}); give one value, or a,b with -m"
        )
    for override in parsed:
        text = cut(override.input_line)
        if override.is_sweep_override() and not grid:
            raise UserError(f"{text}: several values; -m runs each of them, a list is written key=[a,b]")
        if _is_hydras(override.key_or_group):
            _check_hydras(override.key_or_group, text, grid=grid or shows)
        if override.key_or_group.partition(".")[0] == "sweep" and not grid:
            raise UserError(f"{text}: this is about grids; add -m")
        _check_word(override, text, groups)
    return [key for key in keys if not _is_hydras(key)]


def _meant(text: str) -> str:
    """A hint, where a word alone is a choice of a group or a flag."""
    if text in ("help", "h"):
        return " (did you mean --help?)"
    groups = [group for group, found in choices([conf_path()]).items() if text in found and "/" not in group]
    return f" (did you mean {' or '.join(f'{group}={text}' for group in groups)}?)" if groups else ""


def as_setting(flag: str) -> str:
    """What sets a key that was written as a flag (`--epochs`), in words; empty where there is none."""
    name = flag.lstrip("-").partition("=")[0].replace("-", "_")
    if name in choices([conf_path()]) or name == "experiment":
        return f"; a choice is written {name}=<choice>"
    if name in yaml.safe_load((conf_path() / "config.yaml").read_text(encoding="utf-8")):
        return f"; a setting is written {name}=<value>"
    found = re.findall(r"\w+\.\w+", _elsewhere(name))
    return f"; a setting is written {' or '.join(f'{key}=<value>' for key in found)}" if found else ""


def _is_hydras(key: str) -> bool:
    return re.split(r"[./]", key)[0] == "hydra"


def _check_word(override: Override, text: str, groups: Collection[str]) -> None:
    """Refuse what Hydra takes without a word, or with its own error in the middle of composing."""
    key = override.key_or_group
    if len(key) > LONGEST_KEY:
        raise UserError(f"{cut(key)}: no such key")
    if override.is_delete() and key.count(".") < 2:  # else an entry of a mapping, such as stage.rungs.NAME
        raise UserError(f"{text}: takes out what every experiment has; give it a value instead")
    if not override.is_sweep_override() and not override.is_add() and override.value() == {}:
        raise UserError(f"{text}: an empty mapping changes nothing; ~{cut(key)}.NAME takes an entry out")
    group = key in groups or key == "experiment" or "/" in key
    if group and (override.is_add() or override.is_force_add()) and override.package is None:
        raise UserError(f"{text}: adds to a group that has its choice; write {cut(key)}=<choice>")
    values = _values(override, text)
    for value in values if group else ():
        if not isinstance(value, str) or "${" in value or len(value) > LONGEST_KEY or value.endswith(".yaml"):
            raise bad_choice(key, value, _choices_of(key))


def _values(override: Override, text: str) -> list[Any]:
    """The value, or the first values of a grid. Of a glob none: what it stands for, the group has."""
    if not override.is_sweep_override():
        return [override.value()]
    if not override.is_discrete_sweep() or isinstance(override.value(), Glob):
        return []
    try:
        found = list(islice(override.sweep_iterator(Transformer.identity), VALUES_LOOKED_AT))
    except ValueError as error:
        raise UserError(f"{text}: {error}") from error
    return [value.text if isinstance(value, QuotedString) else value for value in found]


def _choices_of(group: str) -> list[str]:
    """The choices of a group that the folder of the configs has."""
    return choices([conf_path()]).get(group, [])


def _elsewhere(key: str) -> str:
    """Which choices have such a key, or that it is a group, in words, by the files of the configs."""
    group, _, name = key.rpartition(".")
    if not re.fullmatch(r"\w+", name):
        return ""
    name = name if group else SHORT.get(name, name)
    every = choices([conf_path()])
    if name in every:
        return f"{name}=<choice> is a group"
    line = re.compile(rf"^{name}:", re.MULTILINE)
    having: dict[str, list[str]] = {}
    for one in [group] if group else [one for one in every if "/" not in one and one != "experiment"]:
        files = ((choice, conf_path() / one / f"{choice}.yaml") for choice in every.get(one, ()))
        having[one] = [choice for choice, file in files if line.search(file.read_text(encoding="utf-8"))]
    if not group:
        there = [f"{one}.{name}" for one, found in having.items() if found and one != "stage"]
        if not there and having["stage"]:
            there = [f"stage.{name} of stage={', '.join(having['stage'])}"]
        return f"did you mean {' or '.join(there)}?" if there else ""
    found = having[group]
    if found:
        return f"{group}={', '.join(found)} ha{'s' if len(found) == 1 else 've'} it"
    return "" if name in SHORT else _elsewhere(name)  # a group's own message knows its names


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


def _check_hydras(key: str, text: str, *, grid: bool) -> None:
    """Refuse an override of Hydra's own part that this program does not use. Raises UserError."""
    if key == "hydra.mode":
        raise UserError(f"{cut(text)}: -m says that the values make a grid")
    group, _, choice = key.partition("/")
    parts = key.split(".")
    of_grids = (group == "hydra" and choice in OF_GRIDS) or (
        parts[0] == "hydra" and parts[1:2] and parts[1] in OF_GRIDS
    )
    if key == "hydra.searchpath":
        return
    if not of_grids or (len(parts) == 2 and not choice) or any(part.startswith("_") for part in parts):
        raise UserError(
            f"{cut(key)}: Hydra's own, which cannot be set here; what can is hydra/launcher, hydra/sweeper, "
            "hydra.launcher.<key>, hydra.sweeper.<key> and hydra.searchpath"
        )
    if not grid:
        raise UserError(f"{cut(text)}: this is about grids; add -m")


def canonical_device(argument: str) -> str:
    """`device=<any notation>` as the choice it means. `gpu:N` becomes a choice by being asked for."""
    key, equals, value = argument.partition("=")
    if key != "device" or not equals:
        return argument
    names = [canonical(part) for part in value.replace("\\:", ":").split(",")]  # as Hydra writes gpu:0 for a cell
    for name in names:
        if ":" in name:
            ConfigStore.instance().store(group="device", name=name, node={"defaults": ["gpu", "_self_"], "name": name})
    return f"device={','.join(names)}"


def with_device_as_typed(error: Exception, arguments: Sequence[str]) -> Exception:
    """An error about `device=gpu:0` as one about `device=cuda:0`, where that is what the user wrote."""
    for argument in arguments:
        meant = f"{canonical_device(argument)}:"
        if argument.startswith("device=") and type(error) in (UserError, Impossible) and str(error).startswith(meant):
            return type(error)(argument + str(error)[len(meant) - 1 :]).with_traceback(error.__traceback__)
    return error


def added_where_open(argument: str) -> str:
    """`stage.arguments.rate=1` as `++stage.arguments.rate=1`, which Hydra asks for where the config has no such key."""
    return f"++{argument}" if is_open(argument) else argument


def is_open(key: str) -> bool:
    """Whether a key, or an override, is an entry of a mapping that any entry fits in."""
    return key.startswith(tuple(f"{one}." for one in OPEN))


def whole_numbers(argument: str) -> str:
    """`training.epochs=1e3` as `training.epochs=1000`: Hydra reads 1000.0, which is not an integer.

    Not a name, a text, an entry of an open mapping, which may be for a function that tells the two apart, or Hydra's.
    """
    key, equals, value = argument.partition("=")
    bare = key.lstrip("+")
    text = bare in PROSE or ("." not in bare and bare != "seed")
    if not NUMBERS.fullmatch(value) or text or is_open(bare) or _is_hydras(bare):
        return argument
    return key + equals + SCIENTIFIC.sub(_whole, value)


def _whole(found: re.Match[str]) -> str:
    number = float(found[0])
    return str(int(number)) if number.is_integer() and abs(number) <= LARGEST_INTEGER else found[0]


def prose_as_text(argument: str) -> str:
    """`stage.prompt=Hello, world` with quotes, without which Hydra sees two values in it, a number in 42, and drops a
    space at the end. Not a value that has quotes, a list, null, or a reference."""
    key, _, value = argument.partition("=")
    if key not in PROSE or not value or value == "null" or value.startswith(("'", '"', "[", "${")):
        return argument
    escaped = re.sub(r"(\\*)'", r"\1\1\'", value)  # of backslashes only those before a quote count
    end = len(escaped) - len(escaped.rstrip("\\"))
    return f"{key}='{escaped}{escaped[len(escaped) - end :]}'"


def chosen_by_cell(overrides: Sequence[str], groups: Collection[str]) -> list[str]:
    """The overrides of a grid; a value below a group that the grid goes over, as the one choice of each of its cells.

    Before the cells Hydra composes a config with the default of such a group, in which the key may be missing.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    over = {one.key_or_group for one in parsed if one.is_sweep_override()}
    over = {group for group in groups if group in over or "experiment" in over} - {"sweep"}  # that one is the grid's
    return [_as_choice(one) if one.key_or_group.partition(".")[0] in over else str(one.input_line) for one in parsed]


def _as_choice(override: Override) -> str:
    text = str(override.input_line)
    if "." not in override.key_or_group or override.is_sweep_override() or override.is_delete():
        return text
    key, _, value = text.partition("=")
    return f"{key}=choice({value or repr('')})"


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
    refusal = bad_choice(group, choice, ours or _choices_of(group))
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
    elsewhere = _of_stage(key, overrides) or _elsewhere(key)
    return bad_key(key, [f"{prefix}.{name}" if prefix else name for name in names], elsewhere)
