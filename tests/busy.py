"""Other processes that compute: busy ones, one for each core, which are nobody's children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

SPINS = "import time\nend = time.monotonic() + 1500\nwhile time.monotonic() < end: pass"
# They outlive the process that starts them.
STARTS = f"""
import subprocess, sys
nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
for _ in range({len(os.sched_getaffinity(0))}):
    print(subprocess.Popen([sys.executable, "-c", {SPINS!r}], start_new_session=True, **nowhere).pid)
"""


@contextmanager
def others_at_work() -> Iterator[None]:
    """For as long as the block takes, however long that is."""
    started = subprocess.run([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, text=True, check=True)
    processes = [psutil.Process(int(pid)) for pid in started.stdout.split()]
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
