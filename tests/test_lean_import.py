"""What Lightning's import leaves out, and that the rest of the process does not notice."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
{before}
import pipeline.backends.lightning
early = "scipy.stats" in sys.modules
import scipy.signal
print(early, scipy.signal.windows.hamming(3)[1], scipy.signal is sys.modules["scipy.signal"])
"""


def run(before: str) -> list[str]:
    command = [sys.executable, "-c", SCRIPT.format(before=before)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_scipy_signal_is_imported_by_who_wants_it_and_not_before() -> None:
    assert run("") == ["False", "1.0", "True"]


def test_scipy_signal_that_is_there_stays() -> None:
    assert run("import scipy.signal") == ["True", "1.0", "True"]
