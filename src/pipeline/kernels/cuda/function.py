"""A function in a file of CUDA C++: what its build promises, on the CPU and for a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pipeline.contracts.kernels import MachineCode

if TYPE_CHECKING:
    from pipeline.kernels.shim.program import Program

Triple = tuple[int, int, int]
FOLDER = Path(__file__).parent
COMMON = "gemm.cuh"
COUNTED = ("HGMMA", "HMMA", "IMMA", "FFMA", "LDSM", "UTMALDG", "LDGSTS", "BAR")  # shown of its machine code


class CudaFunction:
    """`sources`: its file, and those of this folder that it includes. `entry`: the function. `block`: its threads.
    `dynamic`: bytes of dynamic shared memory, where they are the same for all (`shared`).

    `architectures`: the oldest compute capability for each dtype, as 80 for 8.0; of a `specific` one the only one,
    whose instructions no later one has (sm_90a). `tensor_core`: the machine instruction without which a build is wrong.
    `promised`: others without which it is. `registers`: the most that a thread may take on any architecture, and
    `spilled`: how many bytes of them may be stored and loaded again.
    """

    sources: ClassVar[tuple[str, ...]]
    specific: ClassVar[bool]
    entry: str
    block: Triple
    dynamic: int = 0
    architectures: ClassVar[Mapping[str, int]]
    tensor_core: ClassVar[Mapping[str, str]] = {"fp16": "HMMA", "bf16": "HMMA", "tf32": "HMMA", "int8": "IMMA"}
    promised: ClassVar[tuple[str, ...]] = ()
    registers: ClassVar[int]
    spilled: ClassVar[int] = 0

    if TYPE_CHECKING:  # a kernel has it from its contract

        @property
        def name(self) -> str:
            """What messages call it."""

    @property
    def source(self) -> Path:
        """Its file."""
        return FOLDER / self.sources[0]

    @property
    def beside(self) -> tuple[Path, ...]:
        """The files that it includes."""
        return tuple(FOLDER / name for name in self.sources[1:])

    def defines(self, dtype: str, architecture: int | None = None) -> tuple[str, ...]:
        """The macros that it is compiled with, for an architecture as 80 for 8.0; None: for the CPU."""
        return (dtype.upper(),)

    def shared(self, dtype: str, architecture: int | None = None) -> int:
        """Bytes of a block's dynamic shared memory, of what is compiled with these macros."""
        return self.dynamic

    def program(self, dtype: str, source: Path | None = None) -> Program:
        """Compiled for the CPU. `source`: another version of its file."""
        from pipeline.kernels.shim.program import build

        source = source or self.source
        beside = tuple(one if (one := source.parent / path.name).is_file() else path for path in self.beside)
        return build(source, self.entry, self.defines(dtype), self.shared(dtype), beside)

    def compiles_for(self, dtype: str, architecture: int) -> bool:
        """Whether there is machine code of it for a GPU, which need not be there, as 80 for 8.0."""
        oldest = self.architectures.get(dtype)
        return oldest is not None and (architecture == oldest if self.specific else architecture >= oldest)

    def machine_code(self, dtype: str, architecture: int) -> MachineCode | None:
        """Compiled for that GPU; None where it cannot be.

        Raises UserError where the source does not compile, RunError where the code is not what is promised.
        """
        from pipeline.kernels import sass
        from pipeline.kernels.cuda.built import built

        if not self.compiles_for(dtype, architecture):
            return None
        made = built(self, dtype, architecture)
        counted = sass.instructions(made.cubin, self.entry)
        return MachineCode(
            registers=made.registers,
            spilled=made.spilled,
            shared=made.shared + self.shared(dtype, architecture),
            instructions={name: counted[name] for name in COUNTED},
        )
