"""Rung 4: blocks packed in the order in which they are read."""

from __future__ import annotations

from typing import ClassVar

from pipeline.kernels.cpu.cpp import Cpp
from pipeline.spec import spec


@spec
class CpuPacked(Cpp):
    """No settings."""

    sources: ClassVar[tuple[str, ...]] = ("cpu_packed.cpp", "micro.h")
    entry: ClassVar[str] = "cpu_packed"
    rung: ClassVar[int | None] = 4
    launches: ClassVar[str] = "tiles, packed blocks"
