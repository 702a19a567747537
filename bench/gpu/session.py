"""One command for at most so many seconds: it ends with everything that it started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from pipeline.sweep.cell import end_with

POLL_S = 0.1
KILL_S = 5.0
LINES = 3  # of a message
CHARACTERS = 300


@dataclass(frozen=True)
class Ended:
    """`status`: the exit status; None where it was stopped at its limit. `text`: all that it printed this time.

    `left`: its processes that could not be killed.
    """

    status: int | None
    seconds: float
    text: str
    left: tuple[int, ...] = ()


def run(
    command: Sequence[str],
    folder: Path,
    log: Path,
    limit_s: float,
    environment: Mapping[str, str],
    tick: Callable[[float], object] = lambda _: None,
) -> Ended:
    """Run `command` in `folder`, its output behind what `log` has. `tick` hears now and then how many seconds it took.

    It gets a session to itself (setsid(2)), which nothing below it leaves: grids give each cell a process group, but
    not a session. If this process is killed, the kernel kills the command, and the workers of grids end with that.
    """
    began = time.monotonic()
    status = None
    end = partial(end_with, os.getpid(), signal.SIGKILL)
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end,  # noqa: PLW1509  # our only other thread draws the bar: it holds no lock that this needs
        )
        try:
            while status is None and (seconds := time.monotonic() - began) < limit_s:
                tick(seconds)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(min(POLL_S, limit_s - seconds))
        finally:
            left = kill_session(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
    text = log.read_bytes()[start:].decode(errors="replace")
    return Ended(status, time.monotonic() - began, text, tuple(left))


def kill_session(session: int) -> list[int]:
    """Kill every process of a session, those that start meanwhile too. Returns those that still live after KILL_S.

    A process in an uninterruptible sleep, such as one that a driver keeps waiting, dies only when that ends.
    """
    began = time.monotonic()
    while members := [pid for pid in _processes() if _session(pid) == session]:
        if time.monotonic() - began > KILL_S:
            break
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S / 10)
    return members


@contextlib.contextmanager
def ends_by_signal() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as Ctrl-C does, so that it kills what it has started first."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def said(text: str) -> str:
    """The first lines of a message: from the error on where there is one, else of the last, such as an exception's."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    begun = [n for n, line in enumerate(lines) if not line[0].isspace()]
    first = next((n for n in begun if re.match(r"(error|failed): ", lines[n])), begun[-1] if begun else 0)
    found = " ".join(line.strip() for line in lines[first:][:LINES])
    return found if len(found) <= CHARACTERS else f"{found[:CHARACTERS]}..."


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _session(pid: int) -> int | None:
    """Of a process that lives: a zombie has ended, and is its parent's to bury."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:4]  # proc(5)
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(session)
