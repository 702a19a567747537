"""oneDNN through torch, the yardstick of bfloat16 on a CPU with AMX."""

from __future__ import annotations

from importlib.metadata import version
from typing import ClassVar, Literal

from packaging.version import Version

from pipeline.contracts.kernels import Kernel, Launch
from pipeline.kernels.gemm import Gemm, Operands
from pipeline.machine.host import cpu
from pipeline.spec import spec

AMX = "amx_bf16"  # as /proc/cpuinfo calls it
OLDEST = "2.13"  # of torch: oneDNN 3.10, which torch 2.11 has, makes up to 192 rows, columns or K in float32
LEAST = 32  # rows, columns and K of a product that torch surely leaves to oneDNN


@spec
class Onednn(Kernel):
    """No settings. AMX adds up in float32, and D is float32.

    torch has this product for float32 tensors alone: A and B are kept as such, and oneDNN rounds them to bfloat16,
    which changes none of their numbers, in the time that is measured.
    """

    processor: ClassVar[Literal["cpu", "gpu"]] = "cpu"
    dtypes: ClassVar[tuple[str, ...]] = ("bf16",)
    yardstick: ClassVar[bool] = True
    launches: ClassVar[str] = "oneDNN"
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def refusal(self, gemm: Gemm) -> str | None:
        if min(gemm.m, gemm.n, gemm.k) < LEAST:
            return super().refusal(gemm) or f"needs M, N and K from {LEAST} on: torch makes smaller products in float32"
        return super().refusal(gemm)

    def missing(self) -> str | None:
        if AMX not in cpu()["vector"].split():
            return "a CPU with AMX for bfloat16 (Intel, from 2023 on)"
        return None if Version(version("torch")) >= Version(OLDEST) else f"torch {OLDEST} or newer"

    def prepare(self, operands: Operands, threads: int) -> Launch:
        from pipeline.kernels.torch.launch import OneDnn

        return OneDnn(operands, threads)
