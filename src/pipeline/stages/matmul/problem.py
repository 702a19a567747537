"""One product of square matrices: its operands, made from a seed, and what a right result is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.backends.shared.form_bench import WrongResult
from pipeline.kernels.gemm import decode, encode
from pipeline.machine.blas import norm
from pipeline.machine.precision import ROUNDOFF, bytes_per_number

LARGEST = 8  # times the typical error of rounding, that a single element may be wrong by
SUMS = 3  # the same of the norm of sums over random signs
SHORT = ("float16", "bfloat16")
MOST = 0.1  # of its norm, that a result may be off by in any case: SUMS times that is still less than all of it
CHECKS = 8  # matrices in float64 that making operands and comparing a result takes


@dataclass(frozen=True)
class Problem:
    """A·B of two N × N matrices of a dtype."""

    dtype: str
    size: int

    @property
    def flop(self) -> int:
        """Floating-point operations of the product: 2N³."""
        return 2 * self.size**3

    @property
    def matrices_bytes(self) -> int:
        """Bytes of A, B and the result together."""
        return 3 * self.size**2 * bytes_per_number(self.dtype)

    @property
    def needed_bytes(self) -> int:
        """Bytes of the matrices and of all that making and comparing them takes."""
        return self.matrices_bytes + CHECKS * self.size**2 * 8

    @property
    def rounding(self) -> float:
        """How far a result may be from the exact one, in parts of its norm, if its sums are kept in its own dtype.

        Of a sum of N random numbers, term by term, the error grows with the square root of N (N. Higham, Accuracy and
        Stability of Numerical Algorithms, 2nd edition, section 4.5); wider sums and sums by blocks are nearer. The
        factor of a short dtype is by measurement: sums term by term in it err by 0.3·√N roundings for N of 48 to 256,
        by 1.9 at most for an N below 33.
        """
        if self.dtype not in SHORT:
            return float(np.sqrt(self.size + 3)) * ROUNDOFF[self.dtype]
        return min(MOST, max(2.0, 1 + float(np.sqrt(self.size)) / 3) * ROUNDOFF[self.dtype])

    def __str__(self) -> str:
        return f"{self.dtype} {self.size}"


@dataclass(frozen=True)
class Operands:
    """a, b (N, N) in float64; each number is one that the dtype has. Neither is symmetric."""

    problem: Problem
    a: np.ndarray
    b: np.ndarray

    @cached_property
    def reference(self) -> Reference:
        """The product in float64. Raises WrongResult where NumPy's is not right."""
        size, exact = self.problem.size, self.a @ self.b
        signs = signs_of(size)
        sums = exact @ signs
        by_vectors = self.a.astype(np.longdouble) @ (self.b.astype(np.longdouble) @ signs)  # which BLAS does not know
        scale = float(np.linalg.norm(self.a) * np.linalg.norm(self.b) / np.sqrt(size))
        apart = float(np.linalg.norm((sums - by_vectors).astype(np.float64))) / scale
        if not apart <= SUMS * Problem("float64", size).rounding:
            raise WrongResult(
                f"NumPy's float64 product of {size} × {size} is not A(Bx) for a vector x: is its BLAS right?"
            )
        return Reference(self.problem, exact, sums, scale)


@dataclass(frozen=True)
class Reference:
    """`exact` (N, N) in float64. `sums` (N,): of its columns with random signs. `scale`: its norm where none cancel."""

    problem: Problem
    exact: np.ndarray
    sums: np.ndarray
    scale: float

    def compare(self, found: np.ndarray) -> float:
        """The norm of the difference from `exact` in parts of `scale`. Raises WrongResult."""
        if found.shape != self.exact.shape:
            raise WrongResult(f"its result has the shape {found.shape}, not {self.exact.shape}")
        difference, allowed = found - self.exact, self.problem.rounding
        error = norm(difference) / self.scale
        if not error <= allowed:  # so that NaN is wrong
            raise WrongResult(
                f"its result differs from float64's by {error:.1e} of its norm; rounding is {allowed:.1e}"
            )
        largest = float(np.abs(difference).max()) * self.problem.size / self.scale
        if not largest <= LARGEST * allowed:
            row, column = np.unravel_index(np.abs(difference).argmax(), difference.shape)
            number, right = found[row, column], self.exact[row, column]
            raise WrongResult(f"element ({row}, {column}) of its result is {number:.6g}, not {right:.6g}")
        return error

    def compare_sums(self, found: np.ndarray) -> None:
        """The same in N² steps, by sums over random signs, which no wrong column keeps. Raises WrongResult."""
        sums = np.einsum("ij,j->i", found, signs_of(self.problem.size))  # which asks no BLAS, as norm
        error = norm(sums - self.sums) / self.scale
        if not error <= SUMS * self.problem.rounding:
            raise WrongResult(f"its result, when it was timed, differs from float64's by {error:.1e} of its norm")

    def without_matrix(self) -> Reference:
        """For `compare_sums` alone, in the memory of a vector."""
        return Reference(self.problem, np.empty((0, 0)), self.sums, self.scale)


def signs_of(size: int) -> np.ndarray:
    """Random signs 1 and -1 (size,), the same in every call with that size."""
    return np.random.default_rng(size).choice((-1.0, 1.0), size)


def operands(problem: Problem, seed: int) -> Operands:
    """Uniform in [-1, 1], rounded to the dtype: the same in every framework."""
    generator = np.random.default_rng((seed, problem.size))
    a, b = (rounded(generator.uniform(-1, 1, (problem.size,) * 2), problem.dtype) for _ in range(2))
    return Operands(problem, a, b)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64, with numbers that `dtype` has."""
    if dtype == "bfloat16":
        return decode(encode(values.astype(np.float32), "bf16"), "bf16")
    return values.astype(dtype).astype(np.float64)
