"""Memory that a process has for itself alone: pages of a file do not count, since the kernel can give them away."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path


def most_anonymous(process: subprocess.Popen[bytes]) -> int:
    """Bytes of anonymous memory that a process had at its most, looked at every 10 ms until it ends."""
    status, largest = Path(f"/proc/{process.pid}/status"), 0
    while process.poll() is None:
        found = re.search(r"RssAnon:\s+(\d+) kB", status.read_text())
        largest = max(largest, int(found[1]) * 1024 if found else 0)
        time.sleep(0.01)
    return largest
