"""Triton by pointers: programs/pointers.py."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from pipeline.kernels.triton.source import TritonSource
from pipeline.spec import spec


@spec
class Triton(TritonSource):
    """Settings: TritonSource."""

    dtypes: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "tf32")
    launches: ClassVar[str] = "a program for each tile, masked pointers"
    minimum: ClassVar[tuple[int, int] | None] = (8, 0)
    module: ClassVar[str] = "pointers"

    block: tuple[int, int, int] | None = None
    warps: int = Field(default=8, ge=1, le=32)
    stages: int = Field(default=3, ge=1, le=8)
