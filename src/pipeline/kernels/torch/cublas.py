"""cuBLAS through torch, the yardstick on a GPU."""

from __future__ import annotations

from typing import ClassVar, Literal

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.kernels.gemm import Operands
from pipeline.kernels.on_card import missing_torch
from pipeline.spec import spec


@spec
class Cublas(Kernel):
    """No settings. fp16 and bf16 are added up and written in fp32, as the other kernels do it.

    Without int8: torch's product of that is a private function, and refuses most sizes.
    """

    processor: ClassVar[Literal["cpu", "gpu"]] = "gpu"
    dtypes: ClassVar[tuple[str, ...]] = ("fp32", "tf32", "fp16", "bf16")
    yardstick: ClassVar[bool] = True
    launches: ClassVar[str] = "cuBLAS"

    def missing(self) -> str | None:
        return missing_torch(None)

    def prepare(self, operands: Operands, threads: int) -> Launch:
        from pipeline.kernels.torch.launch import by_cublas

        return by_cublas(operands)
