"""Which part of the cores other processes had while something was timed: a rate is then theirs as well."""

from __future__ import annotations

import os
import time

SHORTEST_S = 0.5  # the kernel counts in hundredths of a second
TOLD_FROM = 0.05  # a system has a little to do of its own


class Others:
    """From its making on, by the kernel's counts of the cores that this process may use.

    A process that this one started, and what that started, is none of the others.
    """

    def __init__(self) -> None:
        self.began, self.busy, self.own = time.perf_counter(), _busy_s(), own_s()

    def share(self) -> float | None:
        """Of the cores' time, from 0 to 1; None where less than SHORTEST_S has passed."""
        seconds = time.perf_counter() - self.began
        if seconds < SHORTEST_S:
            return None
        others = (_busy_s() - self.busy) - (own_s() - self.own)
        return min(1.0, max(0.0, others / (seconds * len(_cores()))))


def said_of(share: float | None) -> str | None:
    """In words, where it is enough to disturb what was timed."""
    return None if share is None or share < TOLD_FROM else f"other processes had {share:.0%} of the cores"


def own_s() -> float:
    """Seconds of processor time of this process and of all that it has started."""
    import psutil

    me, total = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has ended
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _busy_s() -> float:
    """Seconds for which the cores have worked, for whomever; what a hypervisor gave to others counts."""
    import psutil

    every = psutil.cpu_times(percpu=True)
    idle = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in user's, too
    return sum(sum(value for name, value in every[core]._asdict().items() if name not in idle) for core in _cores())


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
