"""The executor of a Ray cluster that is there already: a cell is a task, which runs it in its own process."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.cli.exits import stop_on_signals
from pipeline.cli.streams import say
from pipeline.cli.terminal import messages
from pipeline.errors import RunError, UserError
from pipeline.experiment.settings import Sweep
from pipeline.machine.device import canonical
from pipeline.machine.installed import not_installed
from pipeline.raised import in_one_line
from pipeline.sweep.cards import devices_of
from pipeline.sweep.cell import add_environment, in_new_process, write_environment
from pipeline.sweep.history import Kind
from pipeline.sweep.plan import Cell
from pipeline.sweep.schedule import Cancelled

AUTH = "RAY_AUTH_MODE"
KNOCK_SECONDS = 5.0  # between two looks whether the head is there
GONE_SECONDS = 30.0  # after which it is taken for gone; after 60 s without it Ray ends this process without a word


def check(address: str) -> None:
    """Refuse to go on without Ray, or where none answers. Raises UserError."""
    if find_spec("ray") is None:
        raise UserError(f"hydra/launcher=ray: {not_installed(('ray',), ('ray',))}")
    try:
        _knock(address)
    except (OSError, ValueError) as error:
        raise UserError(f"{_silent(address)} ({error})") from error


def _silent(address: str) -> str:
    return f"hydra.launcher.address={address}: no Ray cluster answers there"


class RayTasks:
    """Tasks of Ray. The journals, on the shared file system, say how their cells ended."""

    queues = True
    queued: frozenset[int] = frozenset()  # not asked for: Ray starts no cell again

    def __init__(self, settings: Sweep, folder: Path, address: str, cpus: float, gpus: float | None) -> None:
        import ray

        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError) as error:
            # To a named address Ray gives no token by itself, although `ray start` wants one where the home has one.
            token = "" if AUTH in os.environ else f"; a cluster that wants a token is given it with {AUTH}=token"
            raise UserError(f"{_silent(address)} ({error}){token}") from error
        stop_on_signals()  # Ray has put a handler of SIGTERM in place of ours, which stops no cell
        write_environment(folder)
        self.ray, self.limit, self.cpus, self.gpus = ray, settings.jobs, cpus, gpus
        self.address, self.head = address, str(ray.get_runtime_context().gcs_address)
        self.knocked = self.heard = time.monotonic()
        self.said: set[tuple[float, float]] = set()  # what no node has, as the user knows
        self.task = ray.remote(max_retries=0)(in_new_process)
        self.tasks: dict[int, Any] = {}

    def room(self, cell: Cell) -> bool:
        return self.limit is None or len(self.tasks) < self.limit

    def start(self, cell: Cell, job: Path) -> None:
        add_environment(job, cell)
        devices = devices_of(cell)
        gpus = (devices if cell.kind == "gpu" else 0) if self.gpus is None else self.gpus
        cpus = max(self.cpus, devices)
        self._say_where_no_node_has(cpus, gpus)
        self.tasks[cell.number] = self.task.options(num_cpus=cpus, num_gpus=gpus).remote(job, Path.cwd())

    def _say_where_no_node_has(self, cpus: float, gpus: float) -> None:
        """Ray lets such a task wait, without a word: a node that has it may join."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        fits = any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes)
        if not fits and (cpus, gpus) not in self.said:
            self.said.add((cpus, gpus))
            asked = f"hydra.launcher.cpus={cpus:g} and hydra.launcher.gpus={gpus:g}"
            say(messages(), f"no node of the Ray cluster has {asked}: the cells wait until one joins it")

    def _check_head(self) -> None:
        """Raises RunError where the head has not answered for long."""
        now = time.monotonic()
        if now - self.knocked < KNOCK_SECONDS:
            return
        self.knocked = now
        try:
            _knock(self.head)
            self.heard = now
        except OSError as error:
            if now - self.heard > GONE_SECONDS:
                raise RunError(
                    f"hydra.launcher.address={self.address}: the head of the Ray cluster is gone ({error}), and the "
                    "cells with it; once a head runs there again, the same command resumes them"
                ) from error

    def poll(self) -> list[tuple[int, str | None]]:
        self._check_head()
        ready, _ = self.ray.wait(list(self.tasks.values()), num_returns=len(self.tasks), timeout=0)
        done = [number for number, task in self.tasks.items() if task in ready]
        return [(number, self._violent(self.tasks.pop(number))) for number in done]

    def stop(self, number: int, *, kill: bool) -> None:
        self.ray.cancel(self.tasks[number], force=kill)

    def close(self) -> None:
        for task in self.tasks.values():
            with suppress(Exception):  # whatever state it is in
                self.ray.cancel(task, force=True)
        self.ray.shutdown()

    def _violent(self, task: Any) -> str | None:
        """What is known of a task that did not return."""
        try:
            reason: str | None = self.ray.get(task)
            return reason
        except self.ray.exceptions.NodeDiedError:  # what Ray says of it names hosts, and what else one could look up
            return Cancelled("its Ray task: the node on which it ran is gone")
        except self.ray.exceptions.RayError as error:
            return f"its Ray task: {in_one_line(error)[:300]}"  # a cancelled task's error may have no text


def kind_asked(gpus: float | None, device: str) -> Kind:
    """Which kind of device a node gives a cell: what `device` asks for, and for auto what the launcher does."""
    wanted = canonical(device)
    if wanted == "auto":
        return "gpu" if gpus else "cpu"
    return "cpu" if wanted == "cpu" else "gpu"


def _knock(address: str) -> None:
    """Ray itself tries for minutes where nobody answers. Raises OSError or ValueError."""
    if address.count(":") == 1:
        host, port = address.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
