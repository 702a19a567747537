"""What every kernel in Triton has in common: its program, its settings, and where it runs."""

from __future__ import annotations

import importlib
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pipeline.contracts.kernels import Kernel, Launch, MachineCode
from pipeline.errors import UserError
from pipeline.kernels.on_card import missing_torch
from pipeline.machine.installed import is_installed, not_installed

if TYPE_CHECKING:
    from pipeline.kernels.gemm import Gemm, Operands

GROUP = 8  # rows of tiles that are computed together
SMALLEST = 16  # side of a block, for Tensor Cores
# A tile with 256 columns fetches a quarter fewer bytes per FLOP. Three slices of it take 144 KB, with 128 columns 96:
# an estimate, since below sm_90 Triton keeps one slice fewer, and tiles are written through shared memory, too.
BLOCKS = ((128, 256, 64), (128, 128, 64))
BYTES = 2  # of an element in a slice, whose length is that for 16 bits
INTERPRETED = ("fp16", "tf32")  # Triton's interpreter gives garbage for bf16


class TritonSource(Kernel):
    """A kernel of this folder, which takes rows; columns are the same problem turned.

    `module`: its file in programs/. `copies`: the machine instruction of its copies, without which a build is wrong.
    `block`: rows and columns of D that a program computes at a time, and elements of K in a slice, where these have 16
    bits (None: the first of BLOCKS whose slices fit into the GPU's shared memory). `warps`: of 32 threads each, for a
    program. `stages`: slices that lie in shared memory at a time.
    """

    processor: ClassVar[Literal["cpu", "gpu"]] = "gpu"
    module: ClassVar[str]
    copies: ClassVar[str | None] = None

    block: tuple[int, int, int] | None
    warps: int
    stages: int

    def __post_init__(self) -> None:
        for name, values, least in (("block", self.block or (), SMALLEST), ("warps", (self.warps,), 1)):
            wrong = next((one for one in values if one < least or one & (one - 1)), None)
            if wrong is not None:
                raise UserError(f"stage.kernels: {name}: {wrong}: needs a power of two from {least} on")

    @property
    def name(self) -> str:
        """With its settings where these are not the ordinary ones, so that several can stand beside each other."""
        word = type(self).__module__.rpartition(".")[2]
        ours = "x".join(map(str, (*(self.block or ()), self.warps, self.stages)))
        return word if self == type(self)() else f"{word}_{ours}"

    @property
    def user_files(self) -> tuple[Path, ...]:
        folder = Path(__file__).parent / "programs"
        return folder / f"{self.module}.py", folder / "tiles.py"

    def program(self) -> Any:
        """The function that Triton compiles, or interprets. Imports Triton."""
        return importlib.import_module(f"pipeline.kernels.triton.programs.{self.module}").gemm

    def fitted(self, shared: int) -> TritonSource:
        """With a block, on a GPU that has `shared` bytes of shared memory for one; the last where none fits."""
        if self.block is not None:
            return self
        sizes = {(m, n, k): self.stages * (m + n) * k * BYTES for m, n, k in BLOCKS}
        block = next((one for one in BLOCKS if sizes[one] <= shared), BLOCKS[-1])
        return replace(self, block=block)  # type: ignore[type-var]  # a kernel is a spec, and so a dataclass

    @property
    def shape(self) -> tuple[int, int, int]:
        """The block of a kernel that is fitted."""
        assert self.block is not None
        return self.block

    @property
    def options(self) -> dict[str, object]:
        """What the compiler is asked for. It fuses products and sums, as Triton does by itself only before 3.10, unless
        the user's environment says whether.
        """
        fused = {} if "TRITON_DEFAULT_FP_FUSION" in os.environ else {"enable_fp_fusion": True}
        return {"num_warps": self.warps, "num_stages": self.stages, **fused}

    def constants(self, gemm: Gemm) -> dict[str, object]:
        """What the program is compiled with. A slice of tf32 is half as long: it takes the same bytes."""
        m, n, k = self.shape
        return {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": 2 * k // gemm.type.size,
            "GROUP": GROUP,
            "READS_C": gemm.beta != 0,
            "PRECISION": "tf32" if gemm.dtype == "tf32" else "ieee",
        }

    def grid(self, gemm: Gemm, processors: int) -> int:
        """Programs for a problem by rows, on a GPU of so many multiprocessors."""
        return math.ceil(gemm.m / self.shape[0]) * math.ceil(gemm.n / self.shape[1])

    def missing(self) -> str | None:
        """What this machine lacks: a GPU that is new enough, a torch for it, Triton."""
        lacking, package = missing_torch(self.minimum), _missing_triton()
        if lacking is None:
            return package
        return lacking if package is None else f"{lacking} (to verify it without one: {package})"

    def prepare(self, operands: Operands, threads: int) -> Launch:
        """On the GPU."""
        from pipeline.kernels.triton.launch import TritonLaunch

        return TritonLaunch(self, by_rows(operands), turned=operands.gemm.order == "column")

    def rehearses(self, dtype: str) -> bool:
        return dtype in INTERPRETED and dtype in self.dtypes and _missing_triton() is None

    def rehearse(self, operands: Operands) -> Launch | None:
        """In Triton's interpreter, on the CPU."""
        from pipeline.kernels.triton.interpreter import Interpreted

        return Interpreted(self, by_rows(operands)) if self.rehearses(operands.gemm.dtype) else None

    def compiles_for(self, dtype: str, architecture: int) -> bool:
        oldest = self.minimum or (0, 0)
        return dtype in self.dtypes and _missing_triton() is None and architecture >= 10 * oldest[0] + oldest[1]

    def machine_code(self, dtype: str, architecture: int) -> MachineCode | None:
        from pipeline.kernels.triton.compiled import machine_code

        if not self.compiles_for(dtype, architecture):
            return None
        return machine_code(self, dtype, architecture)


def by_rows(operands: Operands) -> Operands:
    """The same buffers as a problem by rows."""
    return operands if operands.gemm.order == "row" else operands.turned


def _missing_triton() -> str | None:
    return None if is_installed("triton") else not_installed(("triton",), ("triton",))
