"""A kernel of a user's that is Python: einsum."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.kernels.gemm import Operands, views
from pipeline.spec import spec


@spec
class Einsum(Kernel):
    """`path`: as numpy.einsum_path names it."""

    processor: ClassVar[Literal["cpu", "gpu"]] = "cpu"
    dtypes: ClassVar[tuple[str, ...]] = ("fp32",)

    path: str = "optimal"

    def prepare(self, operands: Operands, threads: int) -> Launch:  # noqa: ARG002
        return Summed(operands, self.path)


class Summed(Launch):
    """One call of numpy.einsum."""

    def __init__(self, operands: Operands, path: str) -> None:
        self.operands, self.path, self.buffer = operands, path, operands.d.copy()
        self.facts = {"path": path}

    def run(self) -> None:
        made = self.operands
        a, b, c, d = views(Operands(made.gemm, made.a, made.b, made.c, self.buffer))
        d[...] = np.float32(made.gemm.alpha) * np.einsum("ik,kj->ij", a, b, optimize=self.path)
        if made.gemm.beta:
            d += np.float32(made.gemm.beta) * c

    def result(self) -> np.ndarray:
        return self.buffer
