"""How much of the cores a tracker gets beside what else runs.

Linux shares cores between sessions first, and by priority only within one (sched(7), "The autogroup feature"): the
tracker, which has a session to itself, would have as much of them as the training that it follows.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

LEAST, SOME, NORMAL = 19, 10, 0  # nice values: beside a session that uses all cores 1.5 %, a tenth, half of them
TRIES, PAUSE_S = 3, 0.1  # Linux takes ten changes a second, of all processes together


def share(nice: int, process: int | None = None) -> None:
    """Give the session of a process (None: this one) that much. Another's session, which it did not begin, is left."""
    number = process or os.getpid()
    group = Path(f"/proc/{number}/autogroup")
    for _ in range(TRIES):
        try:
            if os.getsid(number) == number and group.exists():
                group.write_text(str(nice))
            return
        except ProcessLookupError:  # it has ended
            return
        except OSError:
            time.sleep(PAUSE_S)


def step_back() -> None:
    """The training comes first: this process runs when a core would be idle."""
    with suppress(OSError):  # a system that forbids it: the tracker is small all the same
        os.nice(LEAST)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    share(LEAST)
