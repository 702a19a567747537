"""Hydra's side of a sweep: `-m` expands a grid (or asks a search) here, and a launcher says where cells run.

    hydra/sweeper=basic             every combination of the values given
    hydra/sweeper=optuna            a search
    hydra/launcher=workers          on this machine, by warm workers
    hydra/launcher=submitit_slurm   on a Slurm cluster (submitit_local: the same on this machine)
    hydra/launcher=ray              on a Ray cluster

The classes are registered by name when the command line is read, so that an editable install, which would hide a
package called hydra_plugins, has them too.
"""

from __future__ import annotations

import itertools
import math
import sys
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from pipeline.errors import UserError, bad_choice

MOST_CELLS = 100_000
MODULE = "hydra_plugins.pipeline"  # Hydra instantiates plugins of modules below hydra_plugins only


class CellSweeper(Sweeper):
    """What both sweepers share."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.loader = hydra_context.config_loader


class GridSweeper(CellSweeper):
    """Every combination of the values given. Unlike Hydra's own it composes no cell twice."""

    def sweep(self, arguments: list[str]) -> Any:
        assert self.launcher is not None
        return self.launcher.launch(expanded(arguments, self.loader), 0)


class OptunaSweeper(CellSweeper):
    """A search: the values, intervals and ranges given are its space."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def sweep(self, arguments: list[str]) -> Any:
        from pipeline.spec import build_as
        from pipeline.sweep import space
        from pipeline.sweep.search import run_search
        from pipeline.sweep.search_settings import Search

        assert isinstance(self.launcher, CellLauncher)
        params = {str(key): str(value) for key, value in (self.settings.pop("params", None) or {}).items()}
        search = build_as(Search, {name: plain(value) for name, value in self.settings.items()}, "hydra.sweeper")
        fixed, searched = space.split(arguments, params, self.loader)
        self.launcher.check()
        status = run_search(self.launcher.composer(), search, fixed, searched, self.launcher.executor)
        self.launcher.task.statuses.append(status)
        return []


class CellLauncher(Launcher):
    """What every launcher of cells shares: all but where they run."""

    task: Any  # pipeline.command_line.Task, which keeps the sweep's exit status

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from pipeline.machine.launched import SEVERAL, refuse_launched

        refuse_launched("-m", SEVERAL)
        self.loader, self.master, self.task = hydra_context.config_loader, config, task_function

    @abstractmethod
    def executor(self, settings: Any, folder: Path) -> Any:
        """Where cells run: a pipeline.sweep.schedule.Executor."""

    def check(self) -> None:
        """Refuse settings with which no cell could run, before a run begins. Raises UserError."""

    def ask(self) -> Any:
        """Which kind of device a node gives a cell (history.Ask); None where cells run on this machine."""
        return None

    def composer(self) -> Any:
        """What composes the configs of cells."""
        from pipeline.sweep.compose import Composer

        return Composer(self.loader, self.master, self.ask())

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the cells of a grid."""
        from pipeline.sweep.grid import run_grid

        status = run_grid(self.composer(), job_overrides, self.executor, self.check)
        self.task.statuses.append(status)
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=status)]


class WorkersLauncher(CellLauncher):
    """Cells on this machine."""

    def executor(self, settings: Any, folder: Path) -> Any:
        from pipeline.sweep.workers import Workers

        return Workers(settings, folder)


class SubmititLauncher(CellLauncher):
    """Cells as jobs of submitit."""

    def __init__(self, cluster: str, parameters: Any) -> None:
        if cluster not in ("slurm", "local"):
            raise bad_choice("hydra.launcher.cluster", cluster, ("slurm", "local"))
        self.cluster, self.parameters = cluster, plain(parameters) or {}

    def executor(self, settings: Any, folder: Path) -> Any:
        from pipeline.sweep.submitit_jobs import LocalJobs, SlurmJobs

        jobs = {"local": LocalJobs, "slurm": SlurmJobs}
        return jobs[self.cluster](settings, folder, self.parameters)

    def check(self) -> None:
        from pipeline.sweep.submitit_jobs import check

        check(self.cluster, self.parameters)

    def ask(self) -> Any:
        if self.cluster == "local":
            return None
        from pipeline.runs.slurm import check_controller
        from pipeline.sweep.submitit_jobs import kind_asked

        check_controller()
        return cache(partial(kind_asked, self.parameters))


class RayLauncher(CellLauncher):
    """Cells as tasks of Ray."""

    def __init__(self, address: str, cpus: float, gpus: float | None) -> None:
        self.address, self.cpus, self.gpus = address, cpus, gpus

    def executor(self, settings: Any, folder: Path) -> Any:
        from pipeline.sweep.ray_tasks import RayTasks

        return RayTasks(settings, folder, self.address, self.cpus, self.gpus)

    def check(self) -> None:
        from pipeline.sweep.ray_tasks import check

        check(self.address)

    def ask(self) -> Any:
        from pipeline.sweep.ray_tasks import kind_asked

        return partial(kind_asked, self.gpus)


PLUGINS: tuple[Any, ...] = (GridSweeper, OptunaSweeper, WorkersLauncher, SubmititLauncher, RayLauncher)


def plain(value: Any) -> Any:
    """A setting without OmegaConf's wrapping."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def expanded(arguments: Sequence[str], loader: Any) -> list[list[str]]:
    """The overrides of every cell: the product of the values, the last key's running fastest."""
    choices = []
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(arguments)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices.append([str(override.input_line)])
        elif override.is_discrete_sweep():
            values = [f"{key}={value}" for value in itertools.islice(override.sweep_string_iterator(), MOST_CELLS + 1)]
            if not values:
                raise UserError(f"{override.input_line}: no values, so there are no cells")
            choices.append(list(dict.fromkeys(values)))
        else:
            raise UserError(
                f"{override.input_line}: an interval is for a search, hydra/sweeper=optuna; a grid needs values"
            )
    if math.prod(map(len, choices)) > MOST_CELLS:
        raise UserError(f"a grid of more than {MOST_CELLS:,} cells: give fewer values, or search them")
    return [list(cell) for cell in itertools.product(*choices)]


def register() -> None:
    """Make the plugins known to Hydra."""
    parent = sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    parent.__path__ = []  # Hydra imports what it finds in there: launchers and sweepers of others are not for this
    plugins = Plugins.instance()
    parent.pipeline = sys.modules[MODULE] = sys.modules[__name__]  # type: ignore[attr-defined]
    for plugin in PLUGINS:
        plugin.__module__ = MODULE
        plugins.register(plugin)
    # In place of Hydra's own sweeper of this name, which is taken where nobody chooses: were ours chosen in
    # config.yaml, no recipe could choose another.
    ConfigStore.instance().store(group="hydra/sweeper", name="basic", node={"_target_": f"{MODULE}.GridSweeper"})
