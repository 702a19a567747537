"""A kernel of the user's: a file of C++ with a function `gemm`, as cpp.py describes it."""

from __future__ import annotations

from pathlib import Path

from pipeline.kernels.cpu.cpp import Cpp
from pipeline.spec import spec


@spec
class Source(Cpp):
    """`file`: its path."""

    file: str

    @property
    def name(self) -> str:
        return Path(self.file).stem

    @property
    def user_files(self) -> tuple[Path, ...]:
        return (Path(self.file).absolute(),)
