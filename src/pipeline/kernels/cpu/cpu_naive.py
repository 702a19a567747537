"""Rung 0 of the ladder: one sum after the other, loops i, j, k."""

from __future__ import annotations

from typing import ClassVar

from pipeline.kernels.cpu.cpp import ELEMENTS, SUMS, Cpp
from pipeline.spec import spec


@spec
class CpuNaive(Cpp):
    """No settings."""

    sources: ClassVar[tuple[str, ...]] = ("cpu_naive.cpp",)
    entry: ClassVar[str] = "cpu_naive"
    rung: ClassVar[int | None] = 0
    launches: ClassVar[str] = "loops i, j, k"
    dtypes: ClassVar[tuple[str, ...]] = tuple(ELEMENTS)

    def flags(self, dtype: str) -> tuple[str, ...]:
        return (f"-DELEMENT={ELEMENTS[dtype]}", f"-DSUM={SUMS.get(dtype, 'float')}")
