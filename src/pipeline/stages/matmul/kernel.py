"""A kernel of stage=wmma, compiled for this processor, as one more of what stage=matmul compares."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.backends.shared import matrices_numpy
from pipeline.contracts.kernels import Launch
from pipeline.kernels.gemm import Gemm, matrix, operands, views
from pipeline.kernels.named import kernels_of
from pipeline.kernels.verify import missing_of

DTYPE = "float32"  # what these kernels multiply in and sum in: their other dtypes have results of another


class Matrices(matrices_numpy.Matrices):
    """Row by row, as NumPy has them. A launch is made for each pair of operands, with the first product of them.

    After that product its buffer is filled with NaN, so that a kernel that computes nothing when it is timed shows.
    """

    def __init__(self, name: str, threads: int) -> None:
        made: Any = kernels_of((name,))
        (self.kernel,) = made
        self.threads = threads
        self.pair: tuple[np.ndarray, np.ndarray] | None = None
        self.launch: Launch | None = None

    def refusal(self, dtype: str) -> str | None:
        if dtype != DTYPE:
            return f"a kernel takes {DTYPE} here"
        missing = missing_of(self.kernel)
        return None if missing is None else f"needs {missing}"

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """D's buffer is the launch's: the next product of the same operands writes there again."""
        if self.launch is None or self.pair is None or self.pair[0] is not a or self.pair[1] is not b:
            self.pair, self.launch = (a, b), self._prepared(a, b)
            self.launch.run()
            first = self._result(self.launch, len(a)).copy()
            self.launch.refill(np.full_like(self.launch.result(), np.nan))
            return first
        self.launch.run()
        return self._result(self.launch, len(a))

    def _result(self, launch: Launch, size: int) -> np.ndarray:
        return matrix(launch.result(), size, size, size, "row")

    def _prepared(self, a: np.ndarray, b: np.ndarray) -> Launch:
        size = len(a)
        made = operands(Gemm(m=size, n=size, k=size, order="row"), seed=0)
        for place, values in zip(views(made)[:2], (a, b), strict=True):
            place[...] = values
        return self.kernel.prepare(made, self.threads)
