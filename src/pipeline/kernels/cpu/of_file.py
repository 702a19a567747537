"""A kernel of the user's: a file of C++ with a function `gemm`, as cpp.py describes it, with OpenMP where it asks."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pipeline.contracts.kernels import WARNINGS, Launch
from pipeline.kernels.cpu import openmp
from pipeline.kernels.cpu.compiled import Library, compiled, included
from pipeline.kernels.cpu.cpp import Call, Cpp
from pipeline.kernels.gemm import Operands
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
        return (source, *included(source, self.flags("")))

    @property
    def forks(self) -> bool:
        """Not with OpenMP: a framework may have started threads of the same library, for which a fork waits forever."""
        return openmp.FLAG not in self.flags("")

    def flags(self, dtype: str) -> tuple[str, ...]:
        """By the file and the headers that it includes without OpenMP: with it they may be more."""
        source = Path(self.file).absolute()
        return openmp.flags((source, *included(source)))

    def library(self, dtype: str) -> Library:
        source, *beside = self.user_files
        flags = self.flags(dtype)
        system = set(included(source, flags, system=True)) - set(beside)
        return compiled(source, beside, flags, system=sorted(system))

    def prepare(self, operands: Operands, threads: int) -> Launch:
        """Its facts have what the compiler warns of, where it does."""
        library = self.library(operands.gemm.dtype)
        openmp.set_threads(library, threads)
        launch = Call(library, self.entry, operands, threads)
        launch.rest_s = openmp.SPINS_S if openmp.FLAG in library.flags else 0.0
        ignored = openmp.ignored(self.user_files)
        said = ([ignored] if ignored else []) + list(library.warnings)
        launch.facts = {**launch.facts, **({WARNINGS: said} if said else {})}
        return launch
