"""Memory: the peak that a receipt tells is that of its own process."""

from __future__ import annotations

import subprocess
import sys

BIG = """
import subprocess, sys
held = bytearray(b"x") * 500_000_000
print(subprocess.run([sys.executable, "-c", sys.argv[1]], check=True, capture_output=True, text=True).stdout)
"""
SMALL = """
from pipeline.machine.memory import process_peak_bytes
held = bytearray(b"x") * 50_000_000
del held
print(process_peak_bytes())
"""


def test_a_peak_is_not_that_of_whoever_started_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", BIG, SMALL], check=True, capture_output=True, text=True)
    assert 50_000_000 < int(done.stdout) < 400_000_000
