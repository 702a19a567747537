"""A command in a process that knows one framework at most, on so many cores, with nothing compiled before."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from pipeline.errors import RunError
from pipeline.machine.others import allowed_cores
from pipeline.machine.threads import wait_briefly

LONG = 1800.0  # seconds for one process, or one answer of it
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class OwnProcess:
    """`place`: the device, as the receipt names it. `cores`: of the CPU, as many as threads. `folder`: where it runs,
    and compiles into. `keras_on`: Keras's backend in it. `variables`: more of its environment."""

    place: str
    cores: int
    folder: Path
    keras_on: str = "tensorflow"
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, command: Sequence[str]) -> None:
        """Until it ends. Raises RunError with the last thing it said."""
        with self.started(command) as running:
            running.wait()

    @contextlib.contextmanager
    def started(self, command: Sequence[str]) -> Iterator[Running]:
        """While the block lasts, beside whatever else is started."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            with on_cores(self.cores):
                process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self.environment(os.environ),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    text=True,
                    encoding="utf-8",
                )
            try:
                yield Running(process, said)
            finally:
                process.kill()
                with contextlib.suppress(BrokenPipeError):  # an order that it has not read
                    process.communicate()

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Threads as many as cores, which wait as in a run, no GPU for a CPU's job, empty caches of compiled programs,
        and the modules that this process finds, which runs in another folder."""
        found = {
            **given,
            "PYTHONPATH": os.pathsep.join(import_path(given)),
            **dict.fromkeys(THREADS, str(self.cores)),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        wait_briefly(found)
        found |= {"KERAS_BACKEND": self.keras_on, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_ENABLE_X64": "true"}
        found |= {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")}
        found |= {"TRITON_CACHE_DIR": str(self.folder / "triton")}
        if self.place == "cpu":
            found |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
        return {**found, **self.variables}


def import_path(given: Mapping[str, str]) -> list[str]:
    """Where Python looks before its own library, whole: the current folder where this process does, and PYTHONPATH."""
    here = [""] if {"", str(Path.cwd())} & {*sys.path} else []
    named = given.get("PYTHONPATH", "")
    return [str(Path(one).absolute()) for one in (*here, *(named.split(os.pathsep) if named else ()))]


class Running:
    """A process: it ends by itself, or reads orders, a line of JSON each, and answers each with a line."""

    def __init__(self, process: subprocess.Popen[str], said: TextIO) -> None:
        self.process, self.said = process, said

    def wait(self) -> None:
        """Until it ends; there are no orders. Raises RunError with the last thing it said."""
        try:
            self.process.communicate(timeout=LONG)
        except subprocess.TimeoutExpired:
            raise RunError(f"did not end within {LONG:.0f} s") from None
        if self.process.returncode != 0:
            raise self._ended()

    def ask(self, order: Any) -> Any:
        """Give an order, and wait for the answer. Raises RunError where none comes."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and answer() says how
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """The next answer. Raises RunError, with the last thing that the process said, where none comes."""
        assert self.process.stdout is not None
        too_late = threading.Event()

        def end() -> None:
            too_late.set()
            self.process.kill()

        late = threading.Timer(LONG, end)
        late.start()
        try:
            line = self.process.stdout.readline()
        finally:
            late.cancel()
        if line:
            return json.loads(line)
        self.process.wait()
        if too_late.is_set():
            raise RunError(f"did not answer within {LONG:.0f} s")
        raise self._ended()

    def _ended(self) -> RunError:
        self.said.seek(0)
        lines = self.said.read().strip().splitlines() or ["it said nothing"]
        return RunError(f"ended with exit status {self.process.returncode}: {lines[-1][:300]}")


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """A process that is started inside gets the first `count` of our cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed_cores()[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
