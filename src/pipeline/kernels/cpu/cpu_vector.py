"""Rung 3: a tile of D in registers."""

from __future__ import annotations

from typing import ClassVar

from pipeline.kernels.cpu.cpp import Cpp
from pipeline.spec import spec


@spec
class CpuVector(Cpp):
    """No settings."""

    sources: ClassVar[tuple[str, ...]] = ("cpu_vector.cpp", "micro.h")
    entry: ClassVar[str] = "cpu_vector"
    rung: ClassVar[int | None] = 3
    launches: ClassVar[str] = "tiles in registers"
