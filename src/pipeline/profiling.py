"""Profilers: what looks into a run while it runs."""

from __future__ import annotations

from pipeline.spec import spec


@spec
class Off:
    """No profiler."""
