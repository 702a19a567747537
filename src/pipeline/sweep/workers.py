"""The executor of this machine: for each backend one warm worker, which has imported the framework and forks a process
for each cell. A cell starts in 20 ms instead of the 3 s of an import, and finds what a new process would find.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.experiment.settings import Sweep
from pipeline.sweep.cards import Cards, devices_of, on_gpu
from pipeline.sweep.cell import GRACE_SECONDS, last_line, log_file, violent
from pipeline.sweep.plan import Cell


class Worker:
    """Our end of one worker process."""

    def __init__(self, cell: Cell, log: Path) -> None:
        command = [sys.executable, "-m", "pipeline.sweep.worker", str(os.getpid())]
        since = time.time()
        # Its own process group: the terminal's Ctrl-C is for the sweep, which passes it on.
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0
            )
        self.log, self.unread = log, b""
        self.pids: dict[int, int] = {}  # cell -> its process
        self.cells: dict[int, int] = {}  # those that run, and the cores that each takes
        self.unwanted: set[int] = set()  # to be stopped as soon as their processes are known
        self.alive = True
        self.stopped = False  # by us, before it could fork its cells
        about = {"config": cell.config, "keys": cell.keys, "swept": [*cell.swept]}
        self.send({**about, "search": cell.trial is not None, "since": since})

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: the next read says so
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> list[tuple[int, str | None]]:
        """The numbers of the cells that have ended, each with what killed it, or None."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            return self._died()
        *lines, self.unread = (self.unread + data).split(b"\n")
        return [end for line in lines if (end := self._heard(json.loads(line))) is not None]

    def _heard(self, message: dict[str, int]) -> tuple[int, str | None] | None:
        number = message["cell"]
        if "pid" in message:
            self.pids[number] = message["pid"]
            if number in self.unwanted:
                with suppress(ProcessLookupError):
                    os.kill(self.pids[number], signal.SIGTERM)
            return None
        self.cells.pop(number, None)
        self.pids.pop(number, None)
        return number, violent(message["status"])

    def _died(self) -> list[tuple[int, str | None]]:
        """Its cells go with it: whoever ended the worker has left them without anyone to answer to."""
        self.alive = False
        status = self.process.wait()
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        message = "stopped before its cells began" if self.stopped else violent(status)
        reason = message or last_line(self.log) or f"ended with status {status}"
        ended = [(number, f"its worker: {reason}") for number in sorted(self.cells)]
        self.cells.clear()
        return list(ended)

    def stop(self, number: int, *, kill: bool) -> None:
        """Ask a cell of its to end, or end it."""
        pid = self.pids.get(number)
        if pid is None and self.pids and not kill:  # it has others, which may be writing checkpoints
            self.unwanted.add(number)
        elif pid is None:  # still waiting for the import: it has nothing to say
            self.stopped = True
            self.process.kill()
        else:
            with suppress(ProcessLookupError):
                if kill:
                    os.killpg(pid, signal.SIGKILL)
                    return
                os.kill(pid, signal.SIGTERM)
                for suspended in (pid, self.process.pid):
                    os.kill(suspended, signal.SIGCONT)  # else the cell does not end, or nobody says so

    def close(self) -> None:
        """No more cells: the worker ends, and what it still runs with it."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


TOO_LATE = f"did not stop within {GRACE_SECONDS:.0f} s, so it was killed"


class Workers:
    """Warm workers, and which cell runs where."""

    queues = False
    queued: frozenset[int] = frozenset()

    def __init__(self, settings: Sweep, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.workers: dict[str, Worker] = {}
        self.selector = selectors.DefaultSelector()
        self.cards = Cards(settings.jobs)
        self.killed: set[int] = set()  # which were asked to stop before, and did not

    def room(self, cell: Cell) -> bool:
        running = [cores for worker in self.workers.values() for cores in worker.cells.values()]
        if self.settings.jobs is not None:
            return len(running) < self.settings.jobs
        if on_gpu(cell):
            return self.cards.free(cell) is not None
        return not running or sum(running) + _cores(cell) <= len(os.sched_getaffinity(0))

    def start(self, cell: Cell, job: Path) -> None:
        environment = self.cards.take(cell) if on_gpu(cell) else {}
        worker = self._worker(cell)
        worker.cells[cell.number] = _cores(cell)
        worker.send({"cell": cell.number, "job": str(job), "log": str(log_file(job)), "environment": environment})

    def poll(self) -> list[tuple[int, str | None]]:
        ended = []
        for key, _ in self.selector.select(0):
            worker: Worker = key.data
            ended += worker.read()
            if not worker.alive:
                self.selector.unregister(key.fileobj)
        for number, _ in ended:
            self.cards.leave(number)
        return [(number, TOO_LATE if reason and number in self.killed else reason) for number, reason in ended]

    def stop(self, number: int, *, kill: bool) -> None:
        for worker in self.workers.values():
            if kill and number in worker.pids:
                self.killed.add(number)
            if number in worker.cells:
                worker.stop(number, kill=kill)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()

    def _worker(self, cell: Cell) -> Worker:
        name = cell.runnable.backend.name
        if name not in self.workers or not self.workers[name].alive:
            self.workers[name] = Worker(cell, self.folder / "cells" / f"worker-{name}.log")
            self.selector.register(self.workers[name].process.stdout, selectors.EVENT_READ, self.workers[name])  # type: ignore[arg-type]
        return self.workers[name]


def _cores(cell: Cell) -> int:
    """CPU cores that a cell takes; beside a GPU one."""
    if on_gpu(cell):
        return devices_of(cell)
    threads = cell.runnable.backend.threads
    return threads * devices_of(cell) if threads else len(os.sched_getaffinity(0))
