"""Rung 1: loops j, k, i, which follow the order of the numbers in memory."""

from __future__ import annotations

from typing import ClassVar

from pipeline.kernels.cpu.cpp import Cpp
from pipeline.spec import spec


@spec
class CpuOrder(Cpp):
    """No settings."""

    sources: ClassVar[tuple[str, ...]] = ("cpu_order.cpp",)
    entry: ClassVar[str] = "cpu_order"
    rung: ClassVar[int | None] = 1
    launches: ClassVar[str] = "loops j, k, i"
