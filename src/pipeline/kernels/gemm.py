"""The problem D = alpha·A·B + beta·C: its sizes and layouts, and operands made from a seed.

A is (M, K), B (K, N), C and D (M, N). Each lies in a separate buffer, column by column (`order="column"`, as BLAS has
it: element (i, j) at i + j·ld) or row by row (`order="row"`: at i·ld + j). A leading dimension may be larger than the
rows (columns) that it steps over: the numbers in between belong to no matrix, and hold NaN or a sentinel, so that a
kernel that reads them is wrong and one that writes them is seen. So do MARGIN rows (columns) before and behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Order = Literal["column", "row"]
Values = Literal["uniform", "integers"]


@dataclass(frozen=True)
class Dtype:
    """`stored`: NumPy's dtype of A and B, as bits where NumPy lacks it; `out`: of C and D, in which sums are kept too.

    `unit`: the unit roundoff of those sums.
    """

    stored: Any
    out: Any
    unit: float

    @property
    def size(self) -> int:
        """Bytes of an element of A or B."""
        return np.dtype(self.stored).itemsize

    @property
    def out_size(self) -> int:
        """Bytes of an element of C or D."""
        return np.dtype(self.out).itemsize


SINGLE = 2.0**-24
# Tensor Cores add in fp32 without rounding to nearest: a unit of 2^-23 instead of 2^-24.
DTYPES: dict[str, Dtype] = {
    "fp32": Dtype(np.float32, np.float32, SINGLE),
    "tf32": Dtype(np.float32, np.float32, 2 * SINGLE),  # values with 10 bits behind the point, in float32's place
    "fp16": Dtype(np.float16, np.float32, 2 * SINGLE),
    "bf16": Dtype(np.uint16, np.float32, 2 * SINGLE),  # the upper half of a float32's bits
    "int8": Dtype(np.int8, np.int32, 0.0),
}
MARGIN = 16  # of a leading dimension each
MARGIN_STEP = 4096  # numbers; margins are multiples, so that a buffer lies in its pages as its memory does
NAN_OF_D = 0x7FC0_D0D0  # its bits: quiet, so that no copy changes them
POISON = 77_777_777  # of integers that belong to no matrix; in int8 its lowest byte


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """One problem. `pad`: by how much the leading dimensions of A, of B and of C and D exceed the smallest possible."""

    m: int
    n: int
    k: int
    dtype: str = "fp32"
    order: Order = "column"
    alpha: float = 1.0
    beta: float = 0.0
    pad: tuple[int, int, int] = (0, 0, 0)

    @property
    def type(self) -> Dtype:
        return DTYPES[self.dtype]

    @property
    def lda(self) -> int:
        return (self.m if self.order == "column" else self.k) + self.pad[0]

    @property
    def ldb(self) -> int:
        return (self.k if self.order == "column" else self.n) + self.pad[1]

    @property
    def ldc(self) -> int:
        """Of C and of D."""
        return (self.m if self.order == "column" else self.n) + self.pad[2]

    @property
    def flop(self) -> int:
        """Multiplications and additions of A·B."""
        return 2 * self.m * self.n * self.k

    @property
    def traffic(self) -> int:
        """The fewest bytes that have to be moved: A and B read once, D written once, C read once where it counts."""
        ab = (self.m * self.k + self.k * self.n) * self.type.size
        return ab + self.m * self.n * self.type.out_size * (2 if self.beta else 1)

    @property
    def memory(self) -> int:
        """Bytes of the four buffers with their margins."""
        columns = self.order == "column"
        a = _length(self.lda, self.k if columns else self.m)
        b = _length(self.ldb, self.n if columns else self.k)
        return (a + b) * self.type.size + 2 * self.memory_of_d

    @property
    def memory_of_d(self) -> int:
        """Bytes of a buffer for D with its margins."""
        return _length(self.ldc, self.n if self.order == "column" else self.m) * self.type.out_size

    @property
    def intensity(self) -> float:
        """FLOP for each byte of `traffic`."""
        return self.flop / self.traffic

    @property
    def turned(self) -> Gemm:
        """The same problem in the other order, Dᵀ = alpha·Bᵀ·Aᵀ + beta·Cᵀ: the same buffers with A and B swapped."""
        other: Order = "row" if self.order == "column" else "column"
        pad = (self.pad[1], self.pad[0], self.pad[2])
        return replace(self, m=self.n, n=self.m, order=other, pad=pad)

    def __str__(self) -> str:
        size = f"{self.m}" if self.m == self.n == self.k else f"{self.m}×{self.n}×{self.k}"
        return f"{size} {self._but_size}"

    @property
    def in_full(self) -> str:
        """For who has to make the problem again: `M=N=K=1, fp32, column-major`."""
        same = self.m == self.n == self.k
        return f"{f'M=N=K={self.m}' if same else f'M={self.m}, N={self.n}, K={self.k}'}, {self._but_size}"

    @property
    def _but_size(self) -> str:
        scales = "" if (self.alpha, self.beta) == (1, 0) else f", alpha={self.alpha:g}, beta={self.beta:g}"
        leading = "" if not any(self.pad) else f", leading dimensions {self.lda}, {self.ldb}, {self.ldc}"
        return f"{self.dtype}, {self.order}-major{scales}{leading}"


@dataclass(frozen=True)
class Operands:
    """A problem with its buffers, one-dimensional: `a` and `b` of `Dtype.stored`, `c` and `d` of `Dtype.out`.

    `d` is what D holds before the kernel runs: NaN or a sentinel everywhere, which it has to overwrite.
    """

    gemm: Gemm
    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    d: np.ndarray

    @property
    def turned(self) -> Operands:
        """For a kernel that knows one order only: the same buffers, as the problem in the other order has them."""
        return Operands(self.gemm.turned, self.b, self.a, self.c, self.d)

    def room(self) -> np.ndarray:
        """A buffer for D, as `d` is: with margins before and behind, which `check` looks at."""
        return _poisoned(self.d.size, self.gemm.ldc, poison_of_d(self.d.dtype))

    def digest(self) -> tuple[str, ...]:
        """Of A, B and C with their margins: another one after a kernel ran says that it wrote there."""
        return digest(map(with_margins, self.abc))

    @property
    def abc(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The buffers that a kernel reads."""
        return self.a, self.b, self.c


def with_margins(buffer: np.ndarray) -> np.ndarray:
    """All of the memory that a buffer is a part of, where it has margins."""
    return buffer if buffer.base is None else buffer.base


def memory_of(buffer: np.ndarray) -> tuple[np.ndarray, int, int]:
    """All of the memory that a buffer is a part of, where in that it begins, and its length."""
    whole = with_margins(buffer)
    if whole.ndim != 1 or whole.dtype != buffer.dtype:
        whole = buffer
    return whole, (buffer.ctypes.data - whole.ctypes.data) // buffer.itemsize, buffer.size


def digest(buffers: Iterable[np.ndarray]) -> tuple[str, ...]:
    """A hash of each."""
    return tuple(hashlib.sha256(one.data).hexdigest() for one in buffers)


def operands(gemm: Gemm, seed: int, values: Values = "uniform", nan_c: bool = False) -> Operands:
    """Uniform in [-1, 1], rounded to the dtype (int8: in all that it holds); or integers from -4 to 4. Sums of integers
    are exact.

    `nan_c`: C is NaN everywhere (of integers: the least), which with beta = 0 must not show in D.
    """
    generator = np.random.default_rng(seed)

    def drawn(rows: int, columns: int) -> np.ndarray:
        if values == "integers":
            return generator.integers(-4, 5, (rows, columns)).astype(np.float32)
        if gemm.dtype == "int8":
            return generator.integers(-128, 128, (rows, columns)).astype(np.float32)
        return generator.uniform(-1, 1, (rows, columns)).astype(np.float32)

    a, b, c = drawn(gemm.m, gemm.k), drawn(gemm.k, gemm.n), drawn(gemm.m, gemm.n)
    stored, out = gemm.type.stored, gemm.type.out
    if nan_c:
        c = np.full_like(c, np.nan if np.dtype(out).kind == "f" else np.iinfo(out).min)
    return Operands(
        gemm,
        _placed(encode(a, gemm.dtype), gemm.lda, gemm.order, stored),
        _placed(encode(b, gemm.dtype), gemm.ldb, gemm.order, stored),
        _placed(c.astype(out), gemm.ldc, gemm.order, out),
        _poisoned(gemm.ldc * (gemm.n if gemm.order == "column" else gemm.m), gemm.ldc, poison_of_d(out)),
    )


def matrix(buffer: np.ndarray, rows: int, columns: int, leading: int, order: Order) -> np.ndarray:
    """A view (rows, columns) of a buffer."""
    if order == "column":
        return buffer.reshape(columns, leading)[:, :rows].T
    return buffer.reshape(rows, leading)[:, :columns]


def views(operands: Operands) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A, B, C and D as views of their buffers, A and B as stored."""
    gemm, order = operands.gemm, operands.gemm.order
    return (
        matrix(operands.a, gemm.m, gemm.k, gemm.lda, order),
        matrix(operands.b, gemm.k, gemm.n, gemm.ldb, order),
        matrix(operands.c, gemm.m, gemm.n, gemm.ldc, order),
        matrix(operands.d, gemm.m, gemm.n, gemm.ldc, order),
    )


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values rounded to the nearest of a dtype (ties to even), as that is stored."""
    if dtype == "bf16":
        return (_rounded(values, 16).view(np.uint32) >> 16).astype(np.uint16)
    if dtype == "tf32":
        return _rounded(values, 13)
    return values.astype(DTYPES[dtype].stored)


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """What stored numbers are, in float64."""
    if dtype == "bf16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


def _placed(values: np.ndarray, leading: int, order: Order, dtype: Any) -> np.ndarray:
    """The buffer of a matrix; what belongs to no matrix is poisoned."""
    rows, columns = values.shape
    length = leading * (columns if order == "column" else rows)
    buffer = _poisoned(length, leading, np.asarray(poison_of(dtype), dtype))
    matrix(buffer, rows, columns, leading, order)[...] = values
    return buffer


def _poisoned(length: int, leading: int, poison: np.ndarray) -> np.ndarray:
    """A buffer with margins."""
    margin = margin_of(leading)
    return np.full(length + 2 * margin, poison, poison.dtype)[margin : margin + length]


def _length(leading: int, lines: int) -> int:
    """Numbers of a buffer with its margins."""
    return leading * lines + 2 * margin_of(leading)


def margin_of(leading: int) -> int:
    """Numbers before and behind a buffer."""
    return -(-MARGIN * leading // MARGIN_STEP) * MARGIN_STEP


def poison_of(dtype: Any) -> Any:
    """NaN (of bfloat16 its bits), or of integers a number that no product gives."""
    if np.dtype(dtype).kind == "f":
        return np.nan
    return {np.uint16: 0x7FC0, np.int8: 113}.get(np.dtype(dtype).type, POISON)


def poison_of_d(dtype: Any) -> np.ndarray:
    """What D holds before a kernel runs: of real numbers a NaN whose bits no arithmetic with those beside A, B and C
    gives. So a kernel that computes beyond the matrices, from NaN, is seen to have written there."""
    return np.array(NAN_OF_D, np.uint32).view(np.float32) if np.dtype(dtype).kind == "f" else np.array(POISON, dtype)


def _rounded(values: np.ndarray, bits: int) -> np.ndarray:
    """float32 with the lowest `bits` bits rounded away, ties to even."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    half = (1 << (bits - 1)) - 1 + ((raw >> bits) & 1)
    return (((raw + half) >> bits) << bits).astype(np.uint32).view(np.float32)
