"""Rung 5: a part of D for each thread."""

from __future__ import annotations

from typing import ClassVar

from pipeline.kernels.cpu.cpp import Cpp
from pipeline.spec import spec


@spec
class CpuThreads(Cpp):
    """No settings."""

    sources: ClassVar[tuple[str, ...]] = ("cpu_threads.cpp", "cpu_packed.cpp", "micro.h", "team.h")
    entry: ClassVar[str] = "cpu_threads"
    most_threads: ClassVar[int | None] = None
    rung: ClassVar[int | None] = 5
    launches: ClassVar[str] = "packed, a part a thread"
