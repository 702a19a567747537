"""A kernel of the user's: a file of C++ with a function `gemm`, as cpp.py describes it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pipeline.kernels.cpu.compiled import Library, compiled, included
from pipeline.kernels.cpu.cpp import Cpp
from pipeline.spec import spec


@spec
class Source(Cpp):
    """`file`: its path."""

    most_threads: ClassVar[int | None] = None

    file: str

    @property
    def name(self) -> str:
        return Path(self.file).stem

    @property
    def user_files(self) -> tuple[Path, ...]:
        """The file, and the headers that it includes (not the system's)."""
        source = Path(self.file).absolute()
        return (source, *included(source))

    def library(self, dtype: str) -> Library:
        source, *beside = self.user_files
        system = set(included(source, system=True)) - set(beside)
        return compiled(source, beside, self.flags(dtype), system=sorted(system))
