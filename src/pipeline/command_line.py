"""The command line: Hydra's, with its errors turned into one message each and a few holes closed.

Hydra accepts the same key twice and new keys with `+`; here the first is refused below, the second by the specs.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

import hydra
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString, Transformer
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli.conf_path import conf_path
from pipeline.cli.help import choices
from pipeline.cli.interpolation import resolved
from pipeline.errors import UserError, bad_choice, bad_key, cut, shown
from pipeline.experiment import GROUPS
from pipeline.hydra_settings import check_override, hydra_kept_in_bounds
from pipeline.machine.device import canonical
from pipeline.runner import run_one
from pipeline.spec import take_allow_list
from pipeline.sweep import hydra_plugins

Act = Callable[[Mapping[str, Any], Sequence[str]], int]

LONGEST_KEY = 200
VALUES_LOOKED_AT = 1000  # of a grid's choices; more of them are numbers, which no choice is
NUMBER_LIKE = re.compile(r"[\d_.]+(e[+-]?\d+)?|true|false|inf|nan", re.IGNORECASE)


class Task:
    """What Hydra calls with a composed config, or hands on to a sweep; it keeps how things went."""

    def __init__(self, overridden: list[str], act: Act) -> None:
        self.overridden, self.act = overridden, act
        self.statuses: list[int] = []
        self.trouble: list[Exception] = []

    def __call__(self, config: DictConfig) -> None:
        # Hydra prints a line of its own for an exception that leaves the task, so none does.
        try:
            if HydraConfig.get().sweeper._target_.endswith("OptunaSweeper"):
                raise UserError("this is a search (hydra/sweeper=optuna): it runs many cells; add -m")
            self.statuses.append(self.act(resolved(config), self.overridden))
        except Exception as error:
            self.trouble.append(error)


def composed(arguments: list[str], act: Act = run_one) -> int:
    """Compose the config that `arguments` ask for and run it; with -m, run the grid. Returns the exit status.

    `act` is what a single config is given to: `run_one`, or in a test a function that only checks it.
    """
    take_allow_list()
    for argument in arguments:
        if not argument.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise UserError(f"{cut(argument)}: not text in UTF-8")
    arguments = [_name_as_text(canonical_device(argument)) for argument in arguments]
    parsed = _parsed(arguments)
    _check_flags(parsed)
    # Hydra's own parser takes no flag in the middle of the overrides.
    arguments = [*parsed.overrides, *(word for word in arguments if word not in parsed.overrides)]
    task = Task(keys_of(parsed.overrides, grid=parsed.multirun, shows=bool(parsed.cfg)), act)
    sys.argv = [sys.argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, not to Hydra's printer
    hydra_plugins.register()
    try:
        bounds = hydra_kept_in_bounds(lambda error: explained(error, parsed.overrides))
        with _part_to_show(parsed.package if parsed.cfg else None), bounds:
            hydra.main(version_base="1.3", config_path=str(conf_path()), config_name="config")(task)()
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise explained(error, parsed.overrides) from error
    except ValueError as error:
        if not (parsed.shell_completion or parsed.config_path):
            raise
        raise explained(error, arguments) from error
    if task.trouble:
        raise task.trouble[0]
    return max(task.statuses, default=0)


def _parsed(arguments: Sequence[str]) -> Namespace:
    """Flags and overrides, in any order. Raises UserError for a flag that there is not."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        known = "-m, --cfg job|hydra|all, --package NAME, --config-dir DIR, --help; --hydra-help lists the rest"
        raise UserError(cut(message, 300) if unknown == message else f"{cut(unknown)}: no such flag; flags are {known}")

    parser.error = refuse  # type: ignore[method-assign]
    if "--" in arguments:
        raise UserError("--: leave it out; flags and overrides may stand in any order, and no key begins with -")
    parsed = parser.parse_intermixed_args(list(arguments))
    if parsed.experimental_rerun is not None:  # reads a pickle, which may call anything
        refuse("unrecognized arguments: --experimental-rerun")
    return parsed


def _check_flags(parsed: Namespace) -> None:
    """Refuse two of the flags that each ask for something else to be done, as Hydra does with a ValueError."""
    names = ("run", "multirun", "cfg", "info", "shell_completion")
    asked = [f"--{name.replace('_', '-')}" for name in names if getattr(parsed, name)]
    if len(asked) > 1:
        raise UserError(f"{' '.join(asked)}: give one of them; --cfg shows the configuration of a single run")
    if parsed.resolve and not (parsed.cfg or parsed.help):
        raise UserError("--resolve: goes with --cfg job, hydra or all")


@contextlib.contextmanager
def _part_to_show(package: str | None) -> Iterator[None]:
    """For a `--package` that is not in the configuration Hydra writes a line of its own and exits with 1."""
    if package is None:
        yield
        return
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(f"--package {package}: no such part of the configuration; --cfg job shows all of it") from stop


def keys_of(overrides: Sequence[str], *, grid: bool, shows: bool = False) -> list[str]:
    """The keys that are set, without Hydra's own. `shows`: for --cfg, which may show what is about grids.

    Raises UserError for a key set twice, for bad syntax, for several values of a key outside a grid, and for what the
    grammar allows and no config here has.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        if any(not isinstance(override.key_or_group, str) or not override.key_or_group for override in parsed):
            raise OverrideParseException(override=" ".join(overrides), message="an override without a key")
    except OverrideParseException as error:
        reason = cut(" ".join(str(error).partition("See http")[0].split()), 200)
        raise UserError(
            f"{cut(error.override)}: not an override; write key=value, with quotes round special characters "
            f"('key=\"a b\"') ({reason})"
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
            check_override(override.key_or_group, text, grid=grid or shows)
        if override.key_or_group.partition(".")[0] == "sweep" and not grid:
            raise UserError(f"{text}: this is about grids; add -m")
        _check_word(override, text)
    return [key for key in keys if not _is_hydras(key)]


def _is_hydras(key: str) -> bool:
    return re.split(r"[./]", key)[0] == "hydra"


def _check_word(override: Override, text: str) -> None:
    """Refuse what Hydra takes without a word, or with an error of its own in the middle of composing."""
    key = override.key_or_group
    if len(key) > LONGEST_KEY:
        raise UserError(f"{cut(key)}: no such key")
    if override.is_delete() and key.count(".") < 2:  # else an entry of a mapping, such as stage.rungs.NAME
        raise UserError(f"{text}: takes out what every experiment has; give it a value instead")
    group = key in GROUPS or key == "experiment" or "/" in key
    if group and (override.is_add() or override.is_force_add()) and override.package is None:
        raise UserError(f"{text}: adds to a group that has its choice; write {cut(key)}=<choice>")
    values = _values(override, text)
    for value in values if group else ():
        if not isinstance(value, str) or "${" in value or len(value) > LONGEST_KEY:
            raise bad_choice(key, value if isinstance(value, str) else shown(value), _choices(key))


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


def _choices(group: str) -> list[str]:
    """The choices of a group that the folder of the configs has."""
    return choices([conf_path()]).get(group, [])


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


def _name_as_text(argument: str) -> str:
    """`run=2026` and `name=1_0` with quotes, without which Hydra makes numbers of them."""
    key, equals, value = argument.partition("=")
    if key not in ("run", "name") or not equals:
        return argument
    return f"{key}={','.join(repr(part) if NUMBER_LIKE.fullmatch(part) else part for part in value.split(','))}"


def explained(error: Exception, overrides: Sequence[str]) -> UserError:
    """Hydra's, OmegaConf's or the YAML reader's error as one message: value, key, choices."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return UserError(f"{mark.name}, line {mark.line + 1}: not YAML: {error.problem}")
    if isinstance(error, UnicodeDecodeError):
        return UserError(f"a file of the configuration is not text in UTF-8 ({error})")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        options = error.options or []
        if group:
            return bad_choice(group, choice, options)
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    parent = getattr(cause, "parent_node", None)
    key = str(getattr(cause, "full_key", None) or getattr(cause, "key", None) or "")
    if not key:
        found = re.search(r"Could not (?:override|find) '([^']+)'", str(error))
        key = found[1] if found else ""
    if isinstance(cause, TypeError) and "Cannot merge" in str(cause):
        typed = next((text for text in overrides if text.lstrip("+").startswith(f"{key}=")), key)
        return UserError(f"{typed}: should be a {'list' if 'with ListConfig' in str(cause) else 'mapping'}")
    if key and isinstance(parent, DictConfig):
        prefix = key.rpartition(".")[0]
        names = [str(name) for name in parent if name not in ("hydra", "_target_")]
        return bad_key(key, [f"{prefix}.{name}" if prefix else name for name in names])
    if key:
        return UserError(f"{cut(key)}: no such key; `python -m pipeline --help` lists the groups")
    reason = cut(" ".join(str(error).split()), 300)
    if reason and isinstance(error, HydraException | OmegaConfBaseException):
        return UserError(reason)
    return UserError(f"{cut(' '.join(overrides), 200)}: cannot be composed ({type(error).__name__}: {reason})")
