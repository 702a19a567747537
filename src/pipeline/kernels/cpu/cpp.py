"""A kernel that is one function of C++, compiled on this machine: what every rung of the ladder is.

The function has this type, where SUM is float (int8: int32_t) and ELEMENT what A and B hold; matrices lie column by
column, and with beta = 0 C is not to be read:

    extern "C" void gemm(long m, long n, long k, SUM alpha, const ELEMENT *a, long lda, const ELEMENT *b, long ldb,
                         SUM beta, const SUM *c, long ldc, SUM *d, int threads);
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.errors import UserError
from pipeline.kernels.cpu.compiled import Library, compiled, missing_compiler
from pipeline.kernels.gemm import Operands

# C++ types of what A and B hold, and of the sums, by dtype.
ELEMENTS = {"fp32": "float", "tf32": "float", "fp16": "_Float16", "bf16": "Bfloat16", "int8": "int8_t"}
SUMS = {"int8": "int32_t"}


class Cpp(Kernel):
    """`sources`: the file that holds the function, then those that it includes. `entry`: the function's name.

    `most_threads`: that it makes use of; None: any number.
    """

    processor: ClassVar[Literal["cpu", "gpu"]] = "cpu"
    dtypes: ClassVar[tuple[str, ...]] = ("fp32",)
    entry: ClassVar[str] = "gemm"
    most_threads: ClassVar[int | None] = 1

    def missing(self) -> str | None:
        return missing_compiler()

    def flags(self, dtype: str) -> tuple[str, ...]:
        """Of the compiler, beside those that every source gets."""
        return ()

    def library(self, dtype: str) -> Library:
        """Compiled. Raises UserError where it does not compile."""
        source, *beside = self.user_files
        return compiled(source, beside, self.flags(dtype))

    def prepare(self, operands: Operands, threads: int) -> Launch:
        """Raises UserError where the source does not compile, or lacks the function."""
        library = self.library(operands.gemm.dtype)
        return Call(library, self.entry, operands, min(threads, self.most_threads or threads))


class Call(Launch):
    """The function with its arguments."""

    def __init__(self, library: Library, entry: str, operands: Operands, threads: int) -> None:
        # The function knows columns only: a problem by rows is its transpose by columns.
        self.operands = operands if operands.gemm.order == "column" else operands.turned
        self.d = self.operands.room()
        self.facts: Mapping[str, object] = library.facts | {"threads": threads}
        gemm = self.operands.gemm
        whole = gemm.dtype == "int8"

        def scale(value: float) -> ctypes.c_int32 | ctypes.c_float:
            return ctypes.c_int32(int(value)) if whole else ctypes.c_float(value)

        self.function = function(library, entry)
        self.arguments = (
            *(ctypes.c_long(size) for size in (gemm.m, gemm.n, gemm.k)),
            scale(gemm.alpha),
            _pointer(self.operands.a),
            ctypes.c_long(gemm.lda),
            _pointer(self.operands.b),
            ctypes.c_long(gemm.ldb),
            scale(gemm.beta),
            _pointer(self.operands.c),
            ctypes.c_long(gemm.ldc),
            _pointer(self.d),
            ctypes.c_int(threads),
        )

    def run(self) -> None:
        self.function(*self.arguments)

    def result(self) -> np.ndarray:
        return self.d


def function(library: Library, name: str) -> ctypes._NamedFuncPointer:
    """A function of a library. Raises UserError where it has none of that name."""
    try:
        found = library.loaded()[name]
    except AttributeError as error:
        raise UserError(
            f'{library.file.stem.rpartition("-")[0]}: has no function {name}; declare it extern "C", '
            "with the arguments that docs/kernels.md gives"
        ) from error
    found.restype = None
    return found


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
