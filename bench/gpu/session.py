"""One command for at most so many seconds: it ends with everything that it started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.sweep.cell import end_with

POLL_S = 0.1
LINES = 3  # of a message
CHARACTERS = 300


@dataclass(frozen=True)
class Ended:
    """`status`: the exit status; None where it was stopped at its limit. `text`: all that it printed this time."""

    status: int | None
    seconds: float
    text: str


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
            kill_session(process.pid)
            process.wait()
    text = log.read_bytes()[start:].decode(errors="replace")
    return Ended(status, time.monotonic() - began, text)


def kill_session(session: int) -> None:
    """Kill every process of a session, those that start meanwhile too."""
    while members := [pid for pid in _processes() if _session(pid) == session]:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S / 10)


def said(text: str) -> str:
    """The first lines of a message: from the error on where there is one, else the last that was said."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((n for n, line in enumerate(lines) if re.match(r"(error|failed): ", line)), len(lines) - LINES)
    found = " ".join(lines[max(first, 0) :][:LINES])
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
