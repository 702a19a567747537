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
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import hydra
import yaml
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.conf_path import conf_path
from pipeline.device import canonical
from pipeline.errors import UserError, bad_choice, bad_key
from pipeline.runner import run_one
from pipeline.sweep import hydra_plugins

NUMBER_LIKE = re.compile(r"[\d_.]+(e[+-]?\d+)?|true|false|inf|nan", re.IGNORECASE)


class Task:
    """What Hydra calls with a composed config, or hands on to a sweep; it keeps how things went."""

    def __init__(self, overridden: list[str]) -> None:
        self.overridden = overridden
        self.statuses: list[int] = []
        self.trouble: list[Exception] = []

    def __call__(self, config: DictConfig) -> None:
        # Hydra prints a line of its own for an exception that leaves the task, so none does.
        try:
            if HydraConfig.get().sweeper._target_.endswith("OptunaSweeper"):
                raise UserError("this is a search (hydra/sweeper=optuna): it runs many cells; add -m")
            plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
            self.statuses.append(run_one(plain, self.overridden))
        except Exception as error:
            self.trouble.append(error)


def composed(arguments: list[str]) -> int:
    """Compose the config that `arguments` ask for and run it; with -m, run the grid. Returns the exit status."""
    arguments = [_name_as_text(canonical_device(argument)) for argument in arguments]
    parsed = _parsed(arguments)
    _check_flags(parsed)
    # Hydra's own parser takes no flag in the middle of the overrides.
    arguments = [*parsed.overrides, *(word for word in arguments if word not in parsed.overrides)]
    task = Task(keys_of(parsed.overrides, grid=parsed.multirun))
    sys.argv = [sys.argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, not to Hydra's printer
    hydra_plugins.register()
    try:
        with _part_to_show(parsed.package if parsed.cfg else None), _mode_from_the_flag():
            hydra.main(version_base="1.3", config_path=str(conf_path()), config_name="config")(task)()
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise explained(error, parsed.overrides) from error
    if task.trouble:
        raise task.trouble[0]
    return max(task.statuses, default=0)


def _parsed(arguments: Sequence[str]) -> Namespace:
    """Flags and overrides, in any order. Raises UserError for a flag that there is not."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        known = "-m, --cfg job|hydra|all, --package NAME, --config-dir DIR, --help; --hydra-help lists the rest"
        raise UserError(message if unknown == message else f"{unknown}: no such flag; flags are {known}")

    parser.error = refuse  # type: ignore[method-assign]
    return parser.parse_intermixed_args(list(arguments))


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


@contextlib.contextmanager
def _mode_from_the_flag() -> Iterator[None]:
    """Hydra composes everything once more beforehand, to look for a mode in the config; here only -m decides."""
    asked = Hydra.get_mode
    Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = asked  # type: ignore[method-assign]


def keys_of(overrides: Sequence[str], *, grid: bool) -> list[str]:
    """The keys that are set, without Hydra's own.

    Raises UserError for a key set twice, for bad syntax, and for several values of a key outside a grid.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        if any(not isinstance(override.key_or_group, str) or not override.key_or_group for override in parsed):
            raise OverrideParseException(override=" ".join(overrides), message="an override without a key")
    except OverrideParseException as error:
        reason = " ".join(str(error).partition("See http")[0].split())
        raise UserError(
            f"{error.override}: not an override; write key=value, with quotes round special characters "
            f"('key=\"a b\"') ({reason})"
        ) from error
    keys = [override.key_or_group for override in parsed]
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        values = [text for text in overrides if text.lstrip("+~").startswith(twice[0] + "=")]
        raise UserError(f"{twice[0]}: set {len(values)} times ({', '.join(values)}); give one value, or a,b with -m")
    for override in parsed:
        if override.is_sweep_override() and not grid:
            raise UserError(f"{override.input_line}: several values; -m runs each of them, a list is written key=[a,b]")
        if override.key_or_group == "hydra.mode":
            raise UserError(f"{override.input_line}: -m says that the values make a grid")
        if override.key_or_group.partition(".")[0] == "sweep" and not grid:
            raise UserError(f"{override.input_line}: this is about grids; add -m")
    return [key for key in keys if not key.startswith("hydra")]


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
        return UserError(f"{key}: no such key; `python -m pipeline --help` lists the groups")
    return UserError(" ".join(str(error).split()))
