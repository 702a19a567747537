"""A plugin of pytest: why a test failed is said at once, since a part may be stopped before pytest's own account."""

from __future__ import annotations

import pytest

MOST = 4000  # characters of a failure's end


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Called for each phase of each test, in the process that the user sees."""
    if report.failed:
        print(f"\n{report.nodeid}, {report.when}: {report.longreprtext[-MOST:]}", flush=True)
