"""The contract of kernels: pieces of code that compute D = alpha·A·B + beta·C (pipeline.kernels.gemm)."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pipeline.contracts.part import Part

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from pipeline.kernels.gemm import Gemm, Operands

NAME_LENGTH = 80  # of a kernel, whose name is a part of those of metrics
WARNINGS = "warnings"  # the fact that has what a compiler warned of, one text each: the run has a note of it


class Launch(ABC):
    """A kernel that is compiled, with operands in the memory that it reads: ready to run, as often as is wanted.

    `facts`: what the receipt keeps of how it was made (compiler, flags, source's hash; registers, shared memory, ...).
    `waits`: whether this process waits while D is computed, by a GPU or another process, instead of computing it.
    `rest_s`: for how many seconds its threads keep cores busy after a run, as those of a BLAS do that wait for work.
    """

    facts: Mapping[str, object]
    waits: bool = False
    rest_s: float = 0.0

    @abstractmethod
    def run(self) -> None:
        """Compute D once, and return when it is there. Raises RunError where that goes wrong."""

    @abstractmethod
    def result(self) -> np.ndarray:
        """D's buffer as `Operands.d` stores it, padding included, as the last run left it."""

    def refill(self, d: np.ndarray) -> None:
        """Put `d` where D is, so that a run that computes nothing shows. Where `result` is a copy, override it."""
        self.result()[...] = d

    def inputs(self) -> tuple[np.ndarray, ...] | None:
        """A, B and C with their margins as the runs left them; None: it reads the operands' memory, not copies."""
        return None

    def seconds(self, calls: int) -> float:
        """Seconds that a run takes, of `calls` of them back to back. A GPU's kernel measures by the card's clock."""
        began = time.perf_counter()
        for _ in range(calls):
            self.run()
        return (time.perf_counter() - began) / calls


@dataclass(frozen=True, kw_only=True)
class MachineCode:
    """`registers` and `spilled` (bytes): of a thread. `shared`: bytes of a block. `instructions`: how many, by name."""

    registers: int
    spilled: int
    shared: int
    instructions: Mapping[str, int]


def with_settings(word: str, kernel: Kernel, but: Collection[str] = ()) -> str:
    """A name of a kernel with the settings that are not its class's defaults: `mat_mode_oob`.

    `but`: settings that the word stands for. What a metric's name cannot have becomes `_`; a long name is cut.
    """
    from pipeline.spec import own_settings

    settings = {name: value for name, value in own_settings(kernel).items() if name not in but}
    legal = {name: re.sub(r"[^\w.-]+", "_", value).strip("_") for name, value in settings.items()}
    return "_".join((word, *(f"{name}_{value}" for name, value in legal.items())))[:NAME_LENGTH]


class Kernel(Part):
    """One way to compute D = alpha·A·B + beta·C.

    `processor`: where it is timed. `dtypes`: those of A and B that it takes (`gemm.DTYPES`). `yardstick`: the others
    are shown as a share of it, a GPU's before a CPU's. `rung`: its place in a ladder of kernels, each of which adds one
    idea to the one before; None: in none. `launches`: how the work is split, in words, for the table. `minimum`: the
    oldest compute capability, of a GPU's kernel; `specific`: and the only one. `sources`: its files beside its module,
    for the code's hash.
    """

    processor: ClassVar[Literal["cpu", "gpu"]]
    dtypes: ClassVar[tuple[str, ...]]
    yardstick: ClassVar[bool] = False
    rung: ClassVar[int | None] = None
    launches: ClassVar[str] = ""
    minimum: ClassVar[tuple[int, int] | None] = None
    specific: ClassVar[bool] = False
    sources: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:
        """What it is called in tables and metrics: by its module, a user's by its class or file.

        With its settings where these are not the defaults, so that several can stand beside each other.
        """
        from pipeline.spec import choice

        return with_settings(choice(self), self)

    @property
    def forks(self) -> bool:
        """Whether a forked process can run it, which lacks the threads that a library started before the fork."""
        return True

    @property
    def launched(self) -> str:
        """The settings of a launch by which the user's source may be wrong, for the message; `launches` is for figures.

        Empty where there are none.
        """
        return ""

    @property
    def user_files(self) -> tuple[Path, ...]:
        """Its sources."""
        import sys
        from pathlib import Path

        folder = Path(str(sys.modules[type(self).__module__].__file__)).parent
        return tuple(folder / name for name in self.sources)

    def refusal(self, gemm: Gemm) -> str | None:
        """Why it does not take a problem (its dtype, its order, a leading dimension); None where it does."""
        if gemm.dtype not in self.dtypes:
            return f"takes {', '.join(self.dtypes)}, not {gemm.dtype}"
        return None

    def missing(self) -> str | None:
        """What this machine lacks to run it at speed ("an NVIDIA GPU", "a C++ compiler"); None where it can."""
        return None

    @abstractmethod
    def prepare(self, operands: Operands, threads: int) -> Launch:
        """Compiled, for operands of a problem that it takes, on `threads` cores where it runs on the CPU.

        Raises UserError where the source does not compile, with the compiler's lines.
        """

    def compiles_for(self, dtype: str, architecture: int) -> bool:
        """Whether `machine_code` can make code for a GPU, which need not be there, as 80 for 8.0."""
        return False

    def machine_code(self, dtype: str, architecture: int) -> MachineCode | None:
        """Compiled for a GPU that need not be there, as 80 for 8.0; None where that is not one it can be compiled for.

        Raises UserError where the source does not compile, RunError where the code is not what the kernel promises.
        """
        return None

    def rehearses(self, dtype: str) -> bool:
        """Whether `rehearse` can run it here, for A and B of a dtype that it takes."""
        return False

    def rehearse(self, operands: Operands) -> Launch | None:
        """What can be run to verify it on a machine that is `missing` something; None where nothing can."""
        return None
