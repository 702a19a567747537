"""Rung 2: blocks of A that stay in the cache."""

from __future__ import annotations

from typing import ClassVar

from pipeline.kernels.cpu.cpp import Cpp
from pipeline.spec import spec


@spec
class CpuBlocked(Cpp):
    """No settings."""

    sources: ClassVar[tuple[str, ...]] = ("cpu_blocked.cpp",)
    entry: ClassVar[str] = "cpu_blocked"
    rung: ClassVar[int | None] = 2
    launches: ClassVar[str] = "blocks of 256 × 256"
