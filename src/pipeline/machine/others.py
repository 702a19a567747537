"""Which part of the cores other processes had while something was timed: a rate is then theirs as well."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

SHORTEST_S = 0.5  # the kernel counts in hundredths of a second
SHORT_RATE_S = 0.1  # ten time slices of a scheduler
STAT = Path("/proc/stat")
WORKING = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal; not idle, iowait, nor a guest's, part of user's
TOLD_FROM = 0.05  # a system has a little to do of its own


class Others:
    """From its making on, by Linux's counts of the cores that this process may use, or of those that are named.

    A process that this one started, and what that started, is none of the others. What a quota of a container leaves
    to others counts as theirs.
    """

    def __init__(self, cores: Sequence[int] | None = None) -> None:
        self.cores = allowed_cores() if cores is None else cores
        self.began, self.busy, self.own = time.perf_counter(), busy_s(self.cores), own_s()

    def share(self) -> float | None:
        """Of the cores' time, from 0 to 1; None where less than SHORTEST_S has passed, or the counts are not known."""
        seconds, busy = time.perf_counter() - self.began, busy_s(self.cores)
        if seconds < SHORTEST_S or self.busy is None or busy is None:
            return None
        now = own_s()  # what has ended since counts in whoever waited for it, or not at all
        own = sum(max(0.0, spent - self.own.get(key, 0.0)) for key, spent in now.items())
        return min(1.0, max(0.0, (busy - self.busy - own) / (seconds * len(self.cores))))


def said_of(share: float | None) -> str | None:
    """In words, where it is enough to disturb what was timed."""
    return None if share is None or share < TOLD_FROM else f"other processes had {share:.0%} of the cores"


def own_s() -> dict[psutil.Process, float]:
    """Seconds of processor time of this process and of all that it has started.

    psutil tells processes apart by their number and the ticks from boot to their beginning. Its create_time() moves
    with the clock.
    """
    import psutil

    found = {}
    with contextlib.suppress(psutil.Error, OSError):
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it has ended
                times = process.cpu_times()
                spent = times.user + times.system + times.children_user + times.children_system
                found[process] = spent
    return found


def busy_s(cores: Sequence[int]) -> float | None:
    """Seconds for which these cores have worked, for whomever; what a hypervisor kept from them counts.

    None where the kernel does not say it of all of them: the counts of a container may be numbered otherwise.
    """
    try:
        lines = [line.split() for line in STAT.read_text(encoding="ascii").splitlines()]
    except (OSError, UnicodeDecodeError):
        return None
    of_core = {name: counts for name, *counts in lines if name.startswith("cpu")}
    found = [of_core.get(f"cpu{core}") for core in cores]
    if None in found:
        return None
    working = (count for counts in found if counts for place, count in enumerate(counts) if place in WORKING)
    return sum(map(int, working)) / os.sysconf("SC_CLK_TCK")


def too_short(timed_s: float | None) -> bool:
    """Whether a rate was timed over so few seconds that a moment of another process decides it; None: not known."""
    return timed_s is not None and timed_s < SHORT_RATE_S


def allowed_cores() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0))
