"""NumPy's BLAS, the yardstick on a CPU: OpenBLAS, MKL or Accelerate, as NumPy was built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.kernels.gemm import Operands, views
from pipeline.machine.blas import SPINS_S
from pipeline.spec import spec


@spec
class Numpy(Kernel):
    """No settings."""

    processor: ClassVar[Literal["cpu", "gpu"]] = "cpu"
    dtypes: ClassVar[tuple[str, ...]] = ("fp32",)
    yardstick: ClassVar[bool] = True
    launches: ClassVar[str] = "BLAS"
    packages: ClassVar[tuple[str, ...]] = ("numpy",)

    def prepare(self, operands: Operands, threads: int) -> Launch:
        return Matmul(operands, threads)


class Matmul(Launch):
    """numpy.matmul into D; alpha and beta in passes over D by themselves, as NumPy has nothing that does it in one.

    The time of those passes is in what is measured, so that with alpha or beta it is not that of a BLAS called at once.
    """

    def __init__(self, operands: Operands, threads: int) -> None:
        self.operands, self.buffer = operands, operands.room()
        self.a, self.b, self.c, self.d = views(Operands(operands.gemm, operands.a, operands.b, operands.c, self.buffer))
        self.facts: Mapping[str, object] = {"threads": threads} | blas()
        self.rest_s = SPINS_S if threads > 1 else 0.0

    def run(self) -> None:
        alpha, beta = self.operands.gemm.alpha, self.operands.gemm.beta
        np.matmul(self.a, self.b, out=self.d)
        if alpha != 1:
            np.multiply(self.d, np.float32(alpha), out=self.d)
        if beta:
            np.add(self.d, np.float32(beta) * self.c, out=self.d)

    def result(self) -> np.ndarray:
        return self.buffer


def blas() -> dict[str, object]:
    """Which BLAS it is, and the processor that it has chosen its code for."""
    from threadpoolctl import threadpool_info

    kept = ("internal_api", "version", "architecture", "threading_layer", "num_threads")
    found = [one for one in threadpool_info() if one["user_api"] == "blas" and "numpy" in one["filepath"]]
    facts = {name: one[name] for one in found[:1] for name in kept if one.get(name)}
    return {"threads" if name == "num_threads" else name: value for name, value in facts.items()}
