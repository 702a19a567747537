"""The other processes of a training: started by the process that has the run, and ended with it.

That process, rank 0, alone has the command's console, the run's folder, its journal and its tracking. A peer builds
the same experiment from the same config, loads the same data and trains along; see `peer`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from pipeline.backends.torch.group import Group
from pipeline.backends.torch.lean_import import lean_import
from pipeline.backends.torch.lowering import Lowering
from pipeline.datasets.split import examples
from pipeline.errors import RunError
from pipeline.machine.capability import Resolved
from pipeline.machine.memory import process_peak_bytes
from pipeline.runs.fit import NO_STEP, Observation
from pipeline.runs.keeping import where_it_goes_on
from pipeline.runs.receipt import ALWAYS, hardware, places, software

with lean_import():
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from pytorch_lightning.strategies import DDPStrategy

if TYPE_CHECKING:
    from pipeline.datasets import Data
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

READY = "ready"
ANSWER_S = 600.0  # what a process waits for another that lives
DYING_S = 20.0  # what a process takes to end after its connection is gone
# Not skip_connection.
CONNECTION = re.compile(r"nccl|\b(gloo|connection|socket|peer)\b|timed out|pair closure", re.IGNORECASE)
OWN = "dropout and other draws are each process's; batch normalisation is over a process's part of a batch"


class Others(Protocol):
    """What a process knows of those that it trains with."""

    @property
    def group(self) -> Group: ...

    def connected(self, step: Callable[[], int]) -> contextlib.AbstractContextManager[None]:
        """Train together inside. `step`: how far the training is."""


class Alone:
    """A training of one process."""

    group = Group(0, 1)

    def connected(self, step: Callable[[], int]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Ranks(LightningEnvironment):
    """What Lightning asks for who is who: processes that are there already."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = group

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def world_size(self) -> int:
        return self.group.count

    def global_rank(self) -> int:
        return self.group.rank

    def local_rank(self) -> int:
        return 0  # each process's Trainer knows its device alone

    def set_global_rank(self, rank: int) -> None:
        """It is known."""

    def set_world_size(self, size: int) -> None:
        """It is known."""


class Together(DDPStrategy):
    """Lightning's strategy for processes that are there already.

    Its launcher would start none, and yet set each one's threads to all cores, whatever they were set to before.
    """

    def _configure_launcher(self) -> None:
        self._launcher = None


def data_parallel(group: Group, resolved: Resolved) -> DDPStrategy:
    """The strategy. Buffers go their own way in each process, and are shared before a validation."""
    return Together(
        cluster_environment=Ranks(group), process_group_backend=backend_of(resolved), broadcast_buffers=False
    )


class Terminating:
    """Keeps the handler of SIGTERM from Lightning, whose own ends a fit between two batches of a validation, before its
    state is written, and in a group waits for processes that do not answer.

    Lightning sets it when a fit begins. Until it is put back the signal waits.
    """

    def __init__(self) -> None:
        self.handler = signal.getsignal(signal.SIGTERM)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Round a fit."""
        if threading.current_thread() is not threading.main_thread():  # Lightning sets none there
            yield
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            yield
        finally:
            self.put_back()

    def put_back(self) -> None:
        """When Lightning has set its own."""
        signal.signal(signal.SIGTERM, self.handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def accounts(group: Group, experiment: Experiment, resolved: Resolved, seen: Observation) -> dict[str, object] | None:
    """For the receipt: who took part, at the end of a training by several."""
    if group.count == 1:
        return None
    mine = {
        "device": str(resolved.place),
        "products_on": places(seen),
        "threads": torch.get_num_threads(),
        "peak_bytes": process_peak_bytes(),
        "host": socket.gethostname(),
        "hardware": hardware(resolved),
        "versions": software(experiment, ALWAYS),
    }
    carries = dict(each.split(":") for each in dist.get_backend_config().split(","))
    backend = carries[Lowering(resolved).device.type]
    return {"count": group.count, "backend": backend, "each": group.gathered(mine), "not_shared": OWN}


def not_observed(group: Group) -> dict[str, object] | None:
    """The same of a run that went on in its last validation."""
    return None if group.count == 1 else {"count": group.count, "each": None, "not_observed": NO_STEP}


def is_of_connection(error: RuntimeError) -> bool:
    """Whether an exchange has failed, and not what this process computes."""
    return CONNECTION.search(str(error)) is not None


def backend_of(resolved: Resolved) -> str:
    """What carries the sums between the processes."""
    return "nccl" if resolved.place.kind == "gpu" else "gloo"


def connect(folder: Path, group: Group, backend: str) -> None:
    """Join the group, by a file in `folder`: all are on this machine, where no network is asked."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group(
            backend,
            init_method=f"file://{folder / 'group'}",
            rank=group.rank,
            world_size=group.count,
            timeout=timedelta(seconds=ANSWER_S),
        )
    finally:
        if before is None:
            del os.environ["GLOO_SOCKET_IFNAME"]


def disconnect() -> None:
    """Leave the group, if in one."""
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # the others may be gone
            dist.destroy_process_group()


def job_of(experiment: Experiment, data: Data, resolved: Resolved) -> dict[str, Any]:
    """What the others have to know, as JSON."""
    return {
        "config": experiment.config,
        "resolved": asdict(resolved),
        "data_sha256": data.sha256,
        "examples": examples(data),
        "count": experiment.device.processes,
    }


class Peers:
    """Ranks 1 and up, as rank 0 sees them."""

    def __init__(self, experiment: Experiment, data: Data, resolved: Resolved, run: Run) -> None:
        self.group, self.backend, self.run = Group(0, experiment.device.processes), backend_of(resolved), run
        self.folder = Path(tempfile.mkdtemp(prefix="pipeline-group-"))
        job = job_of(experiment, data, resolved) | {
            "checkpoint": None if run.checkpoint is None else str(run.checkpoint.folder)
        }
        (self.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        self.processes: dict[int, subprocess.Popen[str]] = {}
        for rank in range(1, self.group.count):
            self.processes[rank] = self._started(rank)

    def _started(self, rank: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pipeline.backends.torch.peer", str(self.folder), str(rank)]
        with self._log(rank).open("w") as log:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )

    def _log(self, rank: int) -> Path:
        return self.folder / f"{rank}.txt"

    def connect(self) -> None:
        """Wait until each has loaded its data, then join them. Raises RunError where one has ended."""
        for process in self.processes.values():
            assert process.stdout is not None
            while not select.select([process.stdout], [], [], 0.2)[0]:
                pass  # so that a signal is seen
            if process.stdout.readline().strip() != READY:
                raise RunError(self.lost() or "a process of the training does not answer")
        connect(self.folder, self.group, self.backend)

    def lost(self) -> str | None:
        """Which process has ended, and how; None where none ends."""
        until = time.monotonic() + DYING_S
        while time.monotonic() < until:
            for rank, process in self.processes.items():
                if process.poll() is not None:
                    return self._ended(rank, process)
            time.sleep(0.05)
        return None

    def _ended(self, rank: int, process: subprocess.Popen[str]) -> str:
        status = process.returncode
        who = f"process {rank} of {self.group.count} of the training (pid {process.pid})"
        if status < 0:
            return f"{who} was killed by {signal.Signals(-status).name}"
        lines = self._log(rank).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        why = lines[-1].removeprefix("error: ") if lines else "without a message"
        return f"{who} ended with status {status}: {why}"

    @contextlib.contextmanager
    def connected(self, step: Callable[[], int]) -> Iterator[None]:
        """Train together inside. `step`: how far the training is. Raises RunError where a process has ended."""
        try:
            self.connect()
            yield
        except RuntimeError as error:
            why = self.lost() if is_of_connection(error) else None
            if why is None:
                raise
            raise RunError(f"{why}, after step {step():,}; {where_it_goes_on(self.run.folder, step())}") from error

    def close(self) -> None:
        """Kill the processes that are still left."""
        for process in self.processes.values():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        disconnect()
        shutil.rmtree(self.folder, ignore_errors=True)
