"""`python -m pipeline ...`, or a script of the tests, in a process that is forked from one that has imported the
framework, as a grid's cells are.

    python tests/warm.py <backend>      serves: a command a line (JSON) on standard input; on the other the command's
                                        pid, and then its exit status

An import takes longer than most of what is tested. What a new process does before it, and without it, is tested by
new processes (test_lean_import.py, test_command_line.py).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from runpy import run_path

BACKENDS = ("torch", "tensorflow", "jax")
COMMON = ("hydra", "pipeline.command_line", "pipeline.runner", "pipeline.report.figures", "platformdirs")
CONFIG, WEIGHTS = "config.yaml", "artifacts/model/weights.npz"  # the latest run is, for a command, one with weights
FREE = ("COLUMNS", "PIPELINE_MODULES", "PYTHONPATH")  # variables that no import reads once `become` has set them


class Warm:
    """The process of one framework. `environment` is that of its start."""

    def __init__(self, backend: str, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        command = [sys.executable, __file__, backend]
        self.process = subprocess.Popen(command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether a new process would have imported the same in this environment."""
        if any((Path(path) / "pipeline").is_dir() for path in paths(environment.get("PYTHONPATH", ""))):
            return False  # another copy of the package
        different = dict(environment).items() ^ self.environment.items()
        return {name for name, _ in different} <= set(FREE)

    def begin(
        self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str], script: Path | None = None
    ) -> Begun:
        """One command, or one script; the one before it must have ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        place = tempfile.TemporaryDirectory()
        out, err = Path(place.name) / "out", Path(place.name) / "err"
        result = {"folder": str(folder), "arguments": list(arguments), "environment": dict(environment)}
        line = json.dumps({**result, "out": str(out), "err": str(err), "script": script and str(script)})
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        return Begun(self.process, int(self.process.stdout.readline()), place)

    def run(
        self,
        folder: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        timeout: float,
        script: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """One command, or one script, to its end. Raises TimeoutExpired."""
        begun = self.begin(folder, arguments, environment, script)
        status, place = begun.wait(timeout), Path(begun.place.name)
        out, err = ((place / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(list(arguments), status, out, err)


@dataclass
class Begun:
    """A command in a forked process: what of a subprocess.Popen the tests use. `place`: has what it says."""

    server: subprocess.Popen[bytes]
    pid: int
    place: tempfile.TemporaryDirectory[str]
    returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status of one that has ended."""
        return self._ended(0)

    def wait(self, timeout: float) -> int:
        """Its exit status. Raises TimeoutExpired, and ends the server."""
        status = self._ended(timeout)
        if status is None:
            self.server.kill()
            raise subprocess.TimeoutExpired("pipeline", timeout)
        return status

    def send_signal(self, number: int) -> None:
        """Where it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _ended(self, timeout: float) -> int | None:
        assert self.server.stdout is not None
        if self.returncode is None and select.select([self.server.stdout], [], [], timeout)[0]:
            self.returncode = int(self.server.stdout.readline())
        return self.returncode


SERVERS: dict[str, Warm] = {}  # of this session, by backend


def server(folder: Path, arguments: Sequence[str], usual: Mapping[str, str], *, refused: bool = False) -> Warm | None:
    """The process that has imported what a command in `folder` needs; None where that does not follow from its words.

    `usual`: the environment that one is started in. `refused`: the command is to end early, most before a framework is
    imported: no process of TensorFlow, which takes longest, is started for it.
    """
    words = dict(word.split("=", 1) for word in arguments if "=" in word)
    if "experiment" in words and not refused:  # which may choose the backend
        return None
    backend = words.get("backend") or saved_backend(folder, words) or "torch"
    if words.get("stage", "").startswith("pinn") and backend != "torch":
        return None  # DeepXDE chooses its Keras before TensorFlow is imported
    if backend not in BACKENDS:
        return None
    if refused and backend == "tensorflow" and backend not in SERVERS:
        backend = "torch"
    return server_of(backend, usual)


def server_of(backend: str, usual: Mapping[str, str]) -> Warm:
    """The process that has imported a framework."""
    if backend not in SERVERS or SERVERS[backend].process.poll() is not None:
        SERVERS[backend] = Warm(backend, usual)
    return SERVERS[backend]


def saved_backend(folder: Path, words: Mapping[str, str]) -> str | None:
    """The backend of the saved run that a command starts from; None where it names none that can be read."""
    from pipeline.errors import UserError
    from pipeline.runs import lookup
    from pipeline.runs.records import read_config

    if "run" not in words and "resume" not in words:
        return None
    try:
        run = (
            lookup.find_run(folder / "runs", words["run"], holding=WEIGHTS if words["run"] == "latest" else CONFIG)
            if "run" in words
            else lookup.run_folders(folder / "runs")[-1]
        )
        target = read_config(run)["backend"]["_target_"]
    except (UserError, OSError, KeyError, TypeError, IndexError):
        return None
    return str(target).rpartition(".")[2].lower()


def serve(backend: str) -> None:
    """Until standard input ends."""
    from pipeline import backends

    for name in COMMON:
        importlib.import_module(name)
    {"torch": backends.Torch, "tensorflow": backends.TensorFlow, "jax": backends.Jax}[backend]().load()
    hash_code()
    gc.collect()
    gc.freeze()  # what is there stays, and stays shared
    while line := sys.stdin.buffer.readline():
        child = os.fork()
        if not child:
            asked = json.loads(line)
            become(asked)
            leave(ended(main if asked["script"] is None else partial(run_path, asked["script"], run_name="__main__")))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def hash_code() -> None:
    """What every run hashes of this package, a third of its time; where modules lie is looked up by each command."""
    from pipeline.runs.code import code_hash, sources, syntax

    code_hash.closure(name for name in sys.modules if sources.is_ours(name))
    for looked_up in (sources.source, sources._top, syntax.tree):
        looked_up.cache_clear()


def main() -> None:
    """The command."""
    from pipeline.__main__ import main

    main()


def ended(work: Callable[[], object]) -> int:
    """Its exit status."""
    try:
        work()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def leave(status: int) -> None:
    """End as a process does, but for the second that taking the frameworks apart would cost."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads, as the interpreter does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def become(result: Mapping[str, str]) -> None:
    """The files, the environment, the folder and the arguments of a command."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    flags = os.O_WRONLY | os.O_CREAT
    for source, target in ((nothing, 0), (os.open(result["out"], flags), 1), (os.open(result["err"], flags), 2)):
        os.dup2(source, target)
        os.close(source)
    before = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(result["environment"])  # type: ignore[arg-type]
    os.chdir(result["folder"])
    first = Path(result["script"]).parent if result["script"] else result["folder"]
    sys.path[: 1 + len(paths(before))] = [str(first), *paths(os.environ.get("PYTHONPATH", ""))]
    sys.argv = [result["script"] or "pipeline", *result["arguments"]]


def paths(value: str) -> list[str]:
    """The folders of PYTHONPATH as Python takes them: an empty one is the current folder."""
    return [str(Path(path).absolute()) for path in value.split(os.pathsep)] if value else []


if __name__ == "__main__":
    serve(sys.argv[1])
