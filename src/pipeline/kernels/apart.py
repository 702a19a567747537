"""A user's kernel while it is timed: in another process, so that where it crashes or never ends the run goes on."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.errors import RunError
from pipeline.kernels.gemm import Operands, memory_of
from pipeline.kernels.printed import redirect
from pipeline.kernels.verify import as_seconds, how_apart, how_it_ended, in_words, start

Prepare = Callable[[Operands], Launch]


class Apart(Launch):
    """A launch that another process has. `limit`: seconds of each call of it, after which it is ended.

    It measures itself there, so that what goes between the processes is not in its times. Raises RunError.
    """

    def __init__(self, kernel: Kernel, prepare: Prepare, operands: Operands, limit: float) -> None:
        how = how_apart(kernel)
        context: Any = multiprocessing.get_context(how)
        self._limit = limit
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, prepare, operands), daemon=True)
        start(self._process, how, None)
        theirs.close()
        weakref.finalize(self, _end, self._process)
        self.facts, self.rest_s = self._answer(None)

    def run(self) -> None:
        self._ask("run")

    def result(self) -> np.ndarray:
        whole, begin, length = self._ask("result")
        return whole[begin : begin + length]

    def refill(self, d: np.ndarray) -> None:
        self._ask("refill", d)

    def seconds(self, calls: int) -> float:
        return as_seconds(self._ask("seconds", calls))

    def _ask(self, name: str, *arguments: object) -> Any:
        try:
            self._pipe.send((name, arguments))
        except OSError as error:
            raise RunError(how_it_ended(self._process)) from error
        return self._answer(self._limit)

    def _answer(self, limit: float | None) -> Any:
        try:
            if not self._pipe.poll(limit):
                self._process.kill()
                raise RunError(f"has not ended after {limit:.0f} s")
            error, found = self._pipe.recv()
        except (EOFError, ConnectionError) as gone:
            raise RunError(how_it_ended(self._process)) from gone
        if error is not None:
            raise RunError(error)
        return found


def _end(process: BaseProcess) -> None:
    process.kill()
    process.join()


def _serve(to: Connection, prepare: Prepare, operands: Operands) -> None:
    """Answer with (what went wrong, what was returned), as long as the process that asks is there.

    What the kernel prints is thrown away: writing it to a file or a terminal would be in its times.
    """
    redirect(None)
    try:
        launch = prepare(operands)
        to.send((None, (dict(launch.facts), launch.rest_s)))
    except Exception as error:  # whatever the user's code may raise
        to.send((in_words(error), None))
        return
    asks = multiprocessing.parent_process()
    assert asks is not None
    while to in wait((to, asks.sentinel)):
        name, arguments = to.recv()
        try:
            found = getattr(launch, name)(*arguments)
            # With the margins that D may have: a copy of D alone would lose them.
            to.send((None, memory_of(found) if name == "result" else found))
        except Exception as error:
            to.send((in_words(error), None))
