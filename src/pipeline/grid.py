"""`-m`: every combination, each in a process of its own, so that no cell can leak settings or memory into another.

A Hydra launcher: Hydra expands the grid, this runs the cells one after another. A cell that fails costs no other.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from pipeline.errors import Stopped

GRACE_SECONDS = 30.0  # for a cell to write its journal's last word

# What the next grid of this process needs to know that Hydra has no place for.
_flags: list[str] = []
_statuses: list[int] = []
_folders: list[Path] = []  # where Hydra writes the grid's own record, and the parents that it has to make for it


class CellLauncher(Launcher):
    """Runs `python -m pipeline <overrides>` for each cell."""

    # Hydra instantiates plugins of modules below this name only; an editable install would hide a real one.
    __module__ = "hydra_plugins.pipeline"

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        folder = Path(config.hydra.sweep.dir)
        _folders[:] = [folder, *(parent for parent in folder.parents if not parent.exists())]

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the cells in turn and say how many failed."""
        own = [text for text in self.config.hydra.overrides.hydra if not text.startswith("hydra.mode=")]
        returns = []
        for number, overrides in enumerate(job_overrides, start=1):
            print(f"[{number}/{len(job_overrides)}] {' '.join(overrides)}", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "pipeline", *_flags, *own, *overrides]
            status = _run(command)
            _statuses.append(1 if status else 0)
            returns.append(JobReturn(overrides=overrides, status=JobStatus.COMPLETED, _return_value=status))
        failed = [back for back in returns if back.return_value]
        print(f"{len(returns) - len(failed)} of {len(returns)} cells done", file=sys.stderr)
        for back in failed:
            print(f"failed (exit {back.return_value}): {' '.join(back.overrides or ())}", file=sys.stderr)
        return returns


def register(flags: list[str], statuses: list[int]) -> None:
    """Make the launcher known to Hydra. `statuses` receives 0 or 1 for each cell that has run."""
    global _flags, _statuses
    _flags, _statuses = flags, statuses
    Plugins.instance().register(CellLauncher)
    parent = sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    parent.pipeline = sys.modules["hydra_plugins.pipeline"] = sys.modules[__name__]  # type: ignore[attr-defined]
    node: dict[str, Any] = {"_target_": "hydra_plugins.pipeline.CellLauncher"}
    ConfigStore.instance().store(group="hydra/launcher", name="cells", node=node)


def discard_unless_begun() -> None:
    """Remove Hydra's record of a grid that was refused before its first cell."""
    if _folders and not _statuses:
        own, *parents = _folders
        shutil.rmtree(own, ignore_errors=True)
        for parent in parents:
            with suppress(OSError):  # another grid has begun beside this one
                parent.rmdir()


def _run(command: list[str]) -> int:
    """The exit status of a cell. A signal that stops the grid is passed on to the cell, which gets time to say so.

    The cell has a process group of its own: the terminal's Ctrl-C would reach it as a second signal.
    """
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0) as process:
        try:
            return process.wait()
        except Stopped as stop:
            process.send_signal(signal.Signals[stop.signal_name])
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
