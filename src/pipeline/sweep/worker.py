"""A warm worker: imports the framework of its first cell, then forks a process for each cell that it is asked to run.

    python -m pipeline.sweep.worker <the sweep's pid>     (started by workers.py; a JSON object a line, in and out)

The worker itself never trains: it starts no thread, opens no device and touches no seed, so that each forked process is
what a new one would be after its imports. It ends, with its cells, when nobody talks to it any more. Its cells end with
it, however it ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.cli.exits import SIGNALS, status_of, stop_on_signals
from pipeline.machine import memory
from pipeline.machine.device import count_by_bus, gpus, shut_down_nvml
from pipeline.sweep.cell import OVERDUE_SECONDS, end_with


def main() -> int:
    """Serve until standard input ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # one to all processes at once is for the sweep and the cells
    incoming, channel, woken = Lines(sys.stdin.fileno()), Channel(), _wake_on_children()
    end_with(int(sys.argv[1]), signal.SIGKILL)  # an import may take a minute, in which nobody reads standard input
    warm_up(incoming.wait())
    end_with(int(sys.argv[1]), None)  # from here on its end is seen there, and what the cells have started ends too
    children: dict[int, int] = {}  # pid -> cell
    try:
        serve(incoming, channel, woken, children)
    except BrokenPipeError:  # the sweep has died between two lines
        pass
    finally:
        for pid in children:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    return 0


def serve(incoming: Lines, channel: Channel, woken: socket.socket, children: dict[int, int]) -> None:
    """Start what is asked for, and say what has ended; `children` (pid -> cell) is kept up to date."""
    while not incoming.ended:
        if not incoming.waiting:
            select.select([incoming.descriptor, woken.fileno()], [], [])
        with suppress(BlockingIOError):
            woken.recv(4096)
        commands = incoming.new()
        for command in () if incoming.ended else commands:  # nobody waits for what was asked for before the end
            pid = fork(command, channel)
            children[pid] = command["cell"]
            channel.say({"cell": command["cell"], "pid": pid})
        for pid, status in ended(children):
            channel.say({"cell": children.pop(pid), "status": status})


def warm_up(command: dict[str, Any]) -> None:
    """Import what cells like this one will import."""
    from pipeline.ready import backend_of, ready
    from pipeline.runs.code.code_hash import own_modules
    from pipeline.sweep.imports import forkable, import_code
    from pipeline.sweep.reads import watched

    count_by_bus()
    gpus()  # the driver's threads are there before those of the user's modules are counted
    backend_of(command["config"], command["keys"]).load()
    with forkable(), watched():
        experiment, _ = ready(command["config"], command["keys"], command["swept"])
        own_modules(experiment)  # imports the specs of a stage's cells, and reads no data file
    with forkable():
        import_code(experiment, (), command["since"])
    parts = (experiment.stage, experiment.backend, experiment.model, experiment.dataset, experiment.optimizer)
    for part in parts:
        for name in part.imports:
            importlib.import_module(name)
    for name in ("omegaconf", "platformdirs", "pipeline.sweep.cell", *(["optuna"] if command["search"] else [])):
        importlib.import_module(name)
    shut_down_nvml()
    gc.collect()
    gc.freeze()  # the garbage collector of a cell leaves these pages alone, and so shared


def fork(command: dict[str, Any], channel: Channel) -> int:
    """The pid of a new process that runs a cell."""
    worker = os.getpid()
    pid = os.fork()
    if pid:
        with suppress(OSError):  # the child may have been quicker, and may have ended
            os.setpgid(pid, pid)
        return pid
    status = 1
    atexit._clear()  # the worker's own cleaning up
    try:
        end_with(worker, signal.SIGKILL)
        channel.close()
        become_cell(command)
        from pipeline.sweep.cell import run_job

        status = run_job(Path(command["job"]))
    except Exception:  # Python would print it after this process has ended
        traceback.print_exc()
    finally:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            atexit._run_exitfuncs()  # the cell's: TensorFlow writes the code that it generates to files in TMPDIR
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # whatever that raises: what comes after `fork` is the worker's
            os._exit(status)


def become_cell(command: dict[str, Any]) -> None:
    """Its own process group, signals, files and environment."""
    memory.forked = True
    with suppress(OSError):
        os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stop_on_signals(grace=OVERDUE_SECONDS)  # the sweep asks each cell too, and kills what does not end
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.environ.update(command["environment"])
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)


def ended(children: dict[int, int]) -> list[tuple[int, int]]:
    """Children that have ended, with their status (negative: the signal), and nothing of theirs left behind."""
    found = []
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # what it started, loaders' workers for one, does not outlive it
            found.append((pid, os.waitstatus_to_exitcode(status)))
    return found


class Lines:
    """JSON objects from a descriptor, line by line."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.unread, self.ended = descriptor, b"", False
        self.waiting: list[dict[str, Any]] = []

    def new(self) -> list[dict[str, Any]]:
        """The messages that can be read without waiting."""
        while select.select([self.descriptor], [], [], 0)[0] and not self.ended:
            self._read()
        found, self.waiting = self.waiting, []
        return found

    def wait(self) -> dict[str, Any]:
        """Wait for the next message. The process ends where the other end has closed."""
        while not self.waiting:
            self._read()
            if self.ended:
                sys.exit(0)
        return self.waiting.pop(0)

    def _read(self) -> None:
        data = os.read(self.descriptor, 1 << 20)
        self.ended = not data
        *lines, self.unread = (self.unread + data).split(b"\n")
        self.waiting += [json.loads(line) for line in lines]


class Channel:
    """What was standard output: lines to the sweep. What anything prints goes to standard error, into the log."""

    def __init__(self) -> None:
        self.descriptor = os.dup(1)
        os.dup2(2, 1)

    def say(self, message: dict[str, Any]) -> None:
        os.write(self.descriptor, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """In a cell: the sweep must see the end of the channel when the worker dies, whoever of its cells lives on."""
        os.close(self.descriptor)


def _wake_on_children() -> socket.socket:
    """A socket that becomes readable when a child ends: select() alone would sleep on."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(theirs.fileno())
    globals()["_kept"] = theirs  # the descriptor lives as long as the process
    return ours


if __name__ == "__main__":
    sys.exit(status_of(main))
