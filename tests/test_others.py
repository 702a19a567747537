"""Which part of the cores other processes have."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pipeline.machine.others import Others, own_s, said_of

SPIN = "import time; end = time.time() + {}\nwhile time.time() < end: pass"
APART = f"""
import subprocess, sys
for _ in range({len(os.sched_getaffinity(0))}):
    subprocess.Popen([sys.executable, "-c", {SPIN.format(4)!r}], stdin=subprocess.DEVNULL, start_new_session=True)
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_processes_of_others_are_seen() -> None:
    """They are nobody's children once the process that started them has ended."""
    subprocess.run([sys.executable, "-c", APART], check=True)
    others = Others()
    time.sleep(2)
    share = others.share()
    assert share is not None and 0.5 < share <= 1  # beside tests on the same cores, too
    assert said_of(share) == f"other processes had {share:.0%} of the cores"


def test_what_this_process_started_is_its_own() -> None:
    before = own_s()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    assert own_s() - before > 0.45


@pytest.mark.parametrize("share", [None, 0.0, 0.04])
def test_nothing_is_said_of_little(share: float | None) -> None:
    assert said_of(share) is None


def test_no_share_of_a_moment() -> None:
    assert Others().share() is None
