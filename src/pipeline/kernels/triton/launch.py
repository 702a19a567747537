"""A program of Triton's with its arguments: on the GPU that is chosen, or on the CPU where Triton interprets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
from triton.errors import TritonError

from pipeline.errors import RunError
from pipeline.kernels.torch.launch import TorchLaunch, card_name
from pipeline.kernels.triton.cache import keep_compiled
from pipeline.kernels.triton.messages import one_line

if TYPE_CHECKING:
    from pipeline.kernels.gemm import Operands
    from pipeline.kernels.triton.source import TritonSource

FEW = 3  # programs at a time in the interpreter: fewer than tiles, so that each of them computes several


class TritonLaunch(TorchLaunch):
    """For a problem by rows."""

    def __init__(
        self,
        kernel: TritonSource,
        operands: Operands,
        device: str | None = None,
        d: np.ndarray | None = None,
        *,
        turned: bool = False,
    ) -> None:
        """`device`: as torch names it (None: the GPU)."""
        super().__init__(operands, device or card_name(), d, turned=turned)
        keep_compiled()
        self.kernel, self.program = kernel.fitted(self._shared()), kernel.program()
        self.grid = (self.kernel.grid(self.gemm, self._processors()),)
        self.facts: Mapping[str, object] = {
            "compiler": f"Triton {triton.__version__}",
            "block": list(self.kernel.shape),
            "warps": kernel.warps,
            "stages": kernel.stages,
        }

    def launch(self) -> None:
        gemm, kernel = self.gemm, self.kernel
        sizes = (gemm.m, gemm.n, gemm.k, gemm.lda, gemm.ldb, gemm.ldc, gemm.alpha, gemm.beta)
        triton.set_allocator(self._room)
        try:
            self.program[self.grid](self.a, self.b, self.c, self.d, *sizes, **kernel.constants(gemm), **kernel.options)
        except TritonError as error:
            raise RunError(f"Triton: {one_line(error)}") from error

    def _processors(self) -> int:
        if self.device.type == "cpu":
            return FEW
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def _shared(self) -> int:
        """Bytes of shared memory that a block may have; more than any needs in the interpreter."""
        if self.device.type == "cpu":
            return sys.maxsize
        properties: Any = torch.cuda.get_device_properties(self.device)  # torch's stubs lack this one
        return int(properties.shared_memory_per_block_optin)

    def _room(self, size: int, alignment: int, stream: int | None) -> torch.Tensor:
        """Memory of the card in which programs put their tensor descriptors."""
        return torch.empty(size, dtype=torch.int8, device=self.device)
