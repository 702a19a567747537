"""Programs of Triton's run on the CPU, by Triton's own interpreter, in a separate process.

Triton decides when it is imported whether it compiles or interprets, by TRITON_INTERPRET, hence the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING

import numpy as np

from pipeline.contracts.kernels import Launch
from pipeline.errors import RunError
from pipeline.kernels.gemm import memory_of

if TYPE_CHECKING:
    from pipeline.kernels.gemm import Gemm, Operands
    from pipeline.kernels.triton.source import TritonSource

LIMIT_S = 120.0  # of a problem, the start of the process included
Memory = tuple[np.ndarray, int, int]  # a buffer with what lies before and behind it, where it begins, its length


class Interpreted(Launch):
    """A program interpreted, for a problem by rows. It reads and writes a copy of the operands with all that lies
    around them, which is copied back: what it wrote beside D shows."""

    def __init__(self, kernel: TritonSource, operands: Operands) -> None:
        self.kernel, self.gemm, self.d = kernel, operands.gemm, operands.room()
        self.buffers = (*operands.abc, self.d)
        self.facts: Mapping[str, object] = {"runs on": "the CPU, in Triton's interpreter"}

    def run(self) -> None:
        memory = [memory_of(one) for one in self.buffers]
        for (whole, _, _), found in zip(memory, interpreter().run(self.kernel, self.gemm, memory), strict=True):
            whole[...] = found

    def result(self) -> np.ndarray:
        return self.d


class Interpreter:
    """The process, which ends with this one."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        variables = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pipeline.kernels.triton.worker", str(theirs.fileno())]
        self.process = subprocess.Popen(command, env=variables, pass_fds=(theirs.fileno(),))
        theirs.close()

    def run(self, kernel: TritonSource, gemm: Gemm, memory: list[Memory]) -> list[np.ndarray]:
        """The buffers as the program leaves them. Raises RunError where it fails, ends or hangs."""
        try:
            self.connection.send((kernel, gemm, memory))
            if not self.connection.poll(LIMIT_S):
                self.end()
                raise RunError(f"Triton's interpreter has not ended after {LIMIT_S:.0f} s")
            found = self.connection.recv()
        except (EOFError, OSError) as error:
            self.end()
            raise RunError(f"Triton's interpreter has crashed (exit status {self.process.returncode})") from error
        if isinstance(found, str):
            raise RunError(found)
        return list(found)

    def end(self) -> None:
        """The next problem begins another process."""
        interpreter.cache_clear()
        self.process.kill()
        self.process.wait()


@cache
def interpreter() -> Interpreter:
    """The one of this process: it takes seconds to start."""
    return Interpreter()


def answer(requests: Connection) -> None:
    """In the process itself: run what is asked, until nobody asks."""
    from pipeline.kernels.gemm import Operands
    from pipeline.kernels.triton.launch import TritonLaunch

    while True:
        try:
            kernel, gemm, memory = requests.recv()
        except EOFError:
            return
        a, b, c, d = (whole[begin : begin + length] for whole, begin, length in memory)
        try:
            launch = TritonLaunch(kernel, Operands(gemm, a, b, c, d), "cpu", d)
            launch.run()
            requests.send([whole for whole, _, _ in memory])
        except RunError as error:
            requests.send(str(error))
        except Exception as error:  # of the program
            requests.send(f"{type(error).__name__}: {' '.join(str(error).split())}")
