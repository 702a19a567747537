"""Commands as they would be typed, composed and checked: each is taken, or refused for the reason that it would get."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import flag_override

from pipeline.cli.conf_path import conf_path
from pipeline.cli.interpolation import resolved
from pipeline.errors import UserError
from pipeline.experiment import GROUPS, Experiment
from pipeline.machine.launched import Launched, check_launched
from pipeline.ready import check_stage, load_checked

RUN_ALONE = ("hydra/sweeper=basic", "hydra/launcher=basic")  # how a grid would be run is of no concern here
FIRST_OF_TWO = Launched(rank=0, count=2, local_rank=0, local_count=1, by="torchrun")


@dataclass(frozen=True)
class Checked:
    """What comes of a command: its experiment, or why it is refused."""

    experiment: Experiment | None
    refused: str | None = None


class Commands:
    """Checks commands by what holds on every machine: cores, GPUs and saved runs are not looked at.

    Hydra composes the config of each stage. Composing every command would take two seconds more; what a command says
    beside its stage is laid over that config here, and tests/test_frameworks.py compares with the command line.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self.loader = loader
        self.of_stage = cache(self._of_stage)

    def check(self, words: str, launched: Launched | None = None) -> Checked:
        """Of the words behind `python -m pipeline`. `launched`: a launcher has started the command several times."""
        overrides = [word.split("=", 1) for word in shlex.split(words)]
        try:
            keys = [key for key, _ in overrides]
            experiment = load_checked(self._config(overrides), keys)
            check_stage(experiment, keys)
            backend = experiment.backend
            check_launched(launched, experiment.device, backend.name, distributes=backend.distributes)
        except UserError as error:
            return Checked(None, str(error))
        return Checked(experiment)

    def _config(self, overrides: Sequence[Sequence[str]]) -> dict[str, Any]:
        config = deepcopy(self.of_stage(next((value for key, value in overrides if key == "stage"), None)))
        for key, value in overrides:
            group, _, name = key.rpartition(".")
            if key in GROUPS and key != "stage":
                text = (conf_path() / key / f"{value}.yaml").read_text(encoding="utf-8")
                config[key] = yaml.safe_load(text)
            elif key != "stage":
                (config[group] if group else config)[name] = yaml.safe_load(value)
        return config

    def _of_stage(self, stage: str | None) -> dict[str, Any]:
        words = [*RUN_ALONE, *([f"stage={stage}"] if stage else [])]
        whole = self.loader.load_configuration("config", words, RunMode.RUN)
        with flag_override(whole, ["struct", "readonly"], [False, False]):
            del whole["hydra"]
        return resolved(whole)


@contextlib.contextmanager
def commands() -> Iterator[Commands]:
    """By the configs that Hydra has where it runs the command; else (a test) by those that ship."""
    with contextlib.ExitStack() as stack:
        if not GlobalHydra.instance().is_initialized():
            stack.enter_context(initialize_config_dir(str(conf_path()), version_base="1.3", job_name="pipeline"))
        yield Commands(GlobalHydra.instance().config_loader())
