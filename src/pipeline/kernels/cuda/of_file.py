"""A kernel of the user's: a file of CUDA C++ with a function `gemm` that takes what those of this folder take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts.kernels import with_settings
from pipeline.errors import UserError, shown
from pipeline.kernels.cuda.function import COMMON, FOLDER
from pipeline.kernels.cuda.limits import refused_block
from pipeline.kernels.cuda.source import CudaSource
from pipeline.kernels.gemm import DTYPES, Gemm
from pipeline.spec import spec


@spec
class Source(CudaSource):
    """`file`: its path. `block`: its threads. `tile`: rows and columns of D that a block computes.

    `dynamic`: bytes of dynamic shared memory. `multiples`: M, N and K have to be multiples of these.
    The file may include gemm.cuh; the dtype is a macro, as FP16.

        extern "C" __global__ void gemm(const Element *A, const Element *B, const Sum *C, Sum *D, int M, int N, int K,
                                        int lda, int ldb, int ldc, Sum alpha, Sum beta)
    """

    dtypes = tuple(DTYPES)
    entry = "gemm"
    tensor_core: ClassVar[Mapping[str, str]] = {}  # it may do without
    architectures: ClassVar[Mapping[str, int]] = {"fp32": 75, "fp16": 75, "int8": 75, "bf16": 80, "tf32": 80}
    registers = 255
    spilled = 1 << 20

    file: str
    block: tuple[PositiveInt, PositiveInt, PositiveInt] = (256, 1, 1)
    tile: tuple[PositiveInt, PositiveInt] = (16, 16)
    dynamic: NonNegativeInt = 0
    multiples: tuple[PositiveInt, PositiveInt, PositiveInt] = (1, 1, 1)

    def __post_init__(self) -> None:
        if not Path(self.file).is_file():
            raise UserError(f"stage.kernels: {shown(self.file)}: no such file")
        refusal = refused_block(self.block, self.dynamic)
        if refusal is not None:
            raise UserError(f"stage.kernels: {Path(self.file).stem}: {refusal}")

    @property
    def launched(self) -> str:
        of_launch = f"block={list(self.block)}, tile={list(self.tile)}, dynamic={self.dynamic}"
        return f"{of_launch}, for M, N and K that are multiples={list(self.multiples)}"

    def refusal(self, gemm: Gemm) -> str | None:
        """Also of sizes that are not `multiples`; by rows M and N change places."""
        by_columns = gemm.order == "column"
        columns = gemm if by_columns else gemm.turned
        sizes = zip((columns.m, columns.n, columns.k), self.multiples, strict=True)
        if any(size % multiple for size, multiple in sizes):
            takes = "takes M, N and K" if by_columns else "by rows takes N, M and K"
            return f"{takes} that are multiples={list(self.multiples)}"
        return super().refusal(gemm)

    @property
    def name(self) -> str:
        """With its launch where that is not the ordinary one."""
        return with_settings(Path(self.file).stem, self, but=("file", "multiples"))

    @property
    def source(self) -> Path:
        return Path(self.file)

    @property
    def beside(self) -> tuple[Path, ...]:
        return (FOLDER / COMMON, *self.user_files[1:])

    @property
    def user_files(self) -> tuple[Path, ...]:
        """The file, and the headers of the user's that it includes with any dtype."""
        from pipeline.kernels.shim.program import headers

        source = Path(self.file).resolve()
        found = (one for dtype in self.dtypes for one in headers(source, (dtype.upper(),), (FOLDER / COMMON,)))
        return (source, *(one for one in dict.fromkeys(found) if one.parent != FOLDER))
