"""The command line: Hydra's, with its errors turned into one message each and a few holes closed."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli.composing_errors import as_setting, explained
from pipeline.cli.conf_path import check_own, conf_path
from pipeline.cli.for_hydra import (
    added_where_open,
    canonical_device,
    chosen_by_cell,
    prose_as_text,
    whole_numbers,
    with_device_as_typed,
)
from pipeline.cli.interpolation import resolved
from pipeline.cli.overrides import keys_of
from pipeline.cli.recipe import with_choices_to_add
from pipeline.errors import UserError, cut
from pipeline.experiment import GROUPS
from pipeline.hydra_settings import hydra_kept_in_bounds
from pipeline.kernels.named import with_own
from pipeline.runner import run_one
from pipeline.spec import take_allow_list
from pipeline.sweep import hydra_plugins

Act = Callable[[Mapping[str, Any], Sequence[str]], int]

NUMBER_LIKE = re.compile(r"[\d_.]+(e[+-]?\d+)?|true|false|inf|nan", re.IGNORECASE)
IN_LIST = re.compile(rf"(?<=[\[,])({NUMBER_LIKE.pattern})(?=[\],])", re.IGNORECASE)
CONDITIONS = re.compile(r"\[?([^\[\]'\"\\{}$]*[=<>][^\[\]'\"\\{}$]*)\]?")  # of stage.where, without quotes


class Task:
    """What Hydra calls with a composed config, or hands on to a sweep; it keeps how things went."""

    def __init__(self, overridden: list[str], act: Act) -> None:
        self.overridden, self.act = overridden, act
        self.statuses: list[int] = []
        self.trouble: list[Exception] = []

    def __call__(self, config: DictConfig) -> None:
        # Hydra prints its own line for an exception that leaves the task, so none does.
        try:
            if HydraConfig.get().sweeper._target_.endswith("OptunaSweeper"):
                raise UserError("this is a search (hydra/sweeper=optuna): it runs many cells; add -m")
            self.statuses.append(self.act(with_own(resolved(config)), self.overridden))
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
    typed = arguments
    arguments = [whole_numbers(_name_as_text(added_where_open(canonical_device(argument)))) for argument in arguments]
    if not {"-m", "--multirun"} & set(arguments):  # of a grid, a,b are two values
        arguments = [prose_as_text(argument) for argument in arguments]
    parsed = _parsed(arguments)
    _check_flags(parsed)
    if parsed.config_dir:
        check_own(Path(parsed.config_dir), f"--config-dir {parsed.config_dir}")
    # Hydra's own parser takes no flag in the middle of the overrides.
    flags = [word for word in arguments if word not in parsed.overrides]
    if parsed.multirun and any(word.lstrip("+").startswith("resume=") for word in parsed.overrides):
        raise UserError("resume with -m: resumes a single run; a grid resumes when its command is given again")
    task = Task(keys_of(parsed.overrides, GROUPS, grid=parsed.multirun, shows=bool(parsed.cfg)), act)
    _check_resumed(parsed.overrides, task.overridden)
    if parsed.multirun:
        overrides = chosen_by_cell(parsed.overrides, GROUPS)
    else:
        overrides = [*choices_of_saved(parsed.overrides), *parsed.overrides]
    arguments = [*overrides, *flags]
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
        raise with_choices_to_add(with_device_as_typed(task.trouble[0], typed), parsed.overrides, GROUPS)
    return max(task.statuses, default=0)


def choices_of_saved(overrides: Sequence[str]) -> list[str]:
    """The choices of the run that `run=` names, for the groups that the user has left: so that keys are that run's.

    Nothing where there is no such run, which whoever takes it up says, nor for a stage that is about saved runs: it
    builds no experiment, and compares a run with the defaults.
    """
    given = {key: value.strip("'") for key, _, value in (one.partition("=") for one in overrides)}
    if not given.get("run") or given["run"] == "null" or "$" in given["run"]:
        return []
    from pipeline.experiment import ABOUT_RUNS
    from pipeline.runs.choices import choices_beside, target_of_stage
    from pipeline.runs.lookup import find_run
    from pipeline.runs.records import read_config
    from pipeline.runs.saved import OWN

    if str(target_of_stage(given.get("stage", ""))).startswith(ABOUT_RUNS):
        return []
    try:
        folder = find_run(Path(given.get("output_dir", "runs")), given["run"], holding="artifacts/model/weights.npz")
        return choices_beside(read_config(folder), {*OWN, *given})
    except (UserError, OSError, yaml.YAMLError, UnicodeDecodeError):
        return []


def _parsed(arguments: Sequence[str]) -> Namespace:
    """Flags and overrides, in any order. Raises UserError for a flag that there is not."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        known = "-m, --cfg job|hydra|all, --package NAME, --resolve, --config-dir DIR, --help, --version"
        if unknown == message:
            raise UserError(cut(message, 300))
        raise UserError(f"{cut(unknown)}: no such flag{as_setting(unknown.split()[0])}; flags are {known}")

    parser.error = refuse  # type: ignore[method-assign]
    if "--" in arguments:
        raise UserError("--: leave it out; flags and overrides may stand in any order, and no key begins with -")
    parsed = parser.parse_intermixed_args(list(arguments))
    if parsed.experimental_rerun is not None:  # reads a pickle, which may call anything
        refuse("unrecognized arguments: --experimental-rerun")
    if parsed.hydra_help:  # of keys that cannot be set here
        refuse("unrecognized arguments: --hydra-help")
    return parsed


def _check_resumed(overrides: Sequence[str], keys: Sequence[str]) -> None:
    """Refuse settings beside the run that goes on, which has its own dataset and keys. Raises UserError.

    A value that only the composed config has, as of an environment variable, is looked at there.
    """
    words = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
    reference = words.get("resume", "").strip("'\"")
    if "$" not in reference and reference.lower() not in ("null", "auto", ""):
        from pipeline.runs.resume import check_alone

        check_alone(reference, keys)


def _check_flags(parsed: Namespace) -> None:
    """Refuse two of the flags that each ask for something else to be done, as Hydra does with a ValueError."""
    names = ("run", "multirun", "cfg", "info", "shell_completion")
    asked = [f"--{name.replace('_', '-')}" for name in names if getattr(parsed, name)]
    if len(asked) > 1:
        raise UserError(f"{' '.join(asked)}: give one of them; --cfg shows the configuration of a single run")
    for flag in ("resolve", "package"):
        if getattr(parsed, flag) and not (parsed.cfg or parsed.help):
            raise UserError(f"--{flag}: goes with --cfg job, hydra or all")


@contextlib.contextmanager
def _part_to_show(package: str | None) -> Iterator[None]:
    """For a `--package` that is not in the configuration Hydra writes its own line and exits with 1."""
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


def _name_as_text(argument: str) -> str:
    """`run=2026`, `name=1_0` and `model.freeze=[1.10]` with quotes, without which Hydra makes numbers of them.

    `stage.where=[model=cnn]` too, which it could not read.
    """
    key, equals, value = argument.partition("=")
    conditions = CONDITIONS.fullmatch(value) if key == "stage.where" else None
    if conditions:
        return f"{key}=[{','.join(map(repr, conditions[1].split(',')))}]"
    if key in ("model.freeze", "model.start_layers", "model.adapters.layers"):
        return key + equals + IN_LIST.sub(lambda found: repr(found[0]), value)
    if key not in ("run", "name", "model.start", "model.adapters.start") or not equals:
        return argument
    return f"{key}={','.join(repr(part) if NUMBER_LIKE.fullmatch(part) else part for part in value.split(','))}"
