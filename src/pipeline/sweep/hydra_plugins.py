"""Hydra's side of a sweep: `-m` expands a grid (or asks a search) here, and a launcher says where cells run.

    hydra/sweeper=grid        every combination of the values given
    hydra/launcher=workers    on this machine, by warm workers

The classes are registered by name when the command line is read, so that an editable install, which would hide a
package called hydra_plugins, has them too.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
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
from omegaconf import DictConfig

from pipeline.errors import UserError

MODULE = "hydra_plugins.pipeline"  # Hydra instantiates plugins of modules below hydra_plugins only


class GridSweeper(Sweeper):
    """Every combination of the values given. Unlike Hydra's own it composes no cell twice."""

    __module__ = MODULE

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self.loader = hydra_context.config_loader

    def sweep(self, arguments: list[str]) -> Any:
        assert self.launcher is not None
        return self.launcher.launch(expanded(arguments, self.loader), 0)


class WorkersLauncher(Launcher):
    """Cells on this machine."""

    __module__ = MODULE
    task: Any  # pipeline.command_line.Task, which keeps the sweep's exit status

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader, self.master, self.task = hydra_context.config_loader, config, task_function

    def executor(self, settings: Any, folder: Path) -> Any:
        from pipeline.sweep.workers import Workers

        return Workers(settings, folder)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the cells."""
        from pipeline.sweep.compose import Composer
        from pipeline.sweep.grid import run_grid

        status = run_grid(Composer(self.loader, self.master), job_overrides, self.executor)
        self.task.statuses.append(status)
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=status)]


def expanded(arguments: Sequence[str], loader: Any) -> list[list[str]]:
    """The overrides of every cell: the product of the values, the last key's running fastest."""
    choices = []
    for override in OverridesParser.create(config_loader=loader).parse_overrides(list(arguments)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices.append([str(override.input_line)])
        elif override.is_discrete_sweep():
            values = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not values:
                raise UserError(f"{override.input_line}: no value at all, so no cell")
            choices.append(list(dict.fromkeys(values)))
        else:
            raise UserError(
                f"{override.input_line}: an interval is for a search, hydra/sweeper=optuna; a grid needs values"
            )
    return [list(cell) for cell in itertools.product(*choices)]


def register() -> None:
    """Make the plugins known to Hydra."""
    plugins = Plugins.instance()  # looks for installed plugins, which the module made below would be in the way of
    parent = sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    parent.pipeline = sys.modules[MODULE] = sys.modules[__name__]  # type: ignore[attr-defined]
    for group, name, plugin in (("sweeper", "grid", GridSweeper), ("launcher", "workers", WorkersLauncher)):
        plugins.register(plugin)
        node = {"_target_": f"{MODULE}.{plugin.__name__}"}
        ConfigStore.instance().store(group=f"hydra/{group}", name=name, node=node)
