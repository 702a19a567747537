"""A kernel compiled for a GPU, and its machine code inspected before anything is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import RunError
from pipeline.kernels import nvrtc, sass

if TYPE_CHECKING:
    from pipeline.kernels.cuda.source import CudaSource
    from pipeline.kernels.nvrtc import Compiled


def built(kernel: CudaSource, dtype: str, architecture: int) -> Compiled:
    """Raises UserError where it does not compile, RunError where the machine code is not what the kernel promises."""
    made = nvrtc.compiled(
        kernel.source, architecture, (dtype.upper(),), kernel.beside, kernel.entry, specific=kernel.specific
    )
    fault = _fault(kernel, dtype, made)
    if fault:
        raise RunError(f"{kernel.name}, {dtype}, sm_{architecture}: {fault}")
    return made


def _fault(kernel: CudaSource, dtype: str, made: Compiled) -> str | None:
    """What is wrong with the machine code, in words."""
    if made.registers > kernel.registers:
        return f"takes {made.registers} registers a thread, and may take {kernel.registers}"
    if made.spilled > kernel.spilled:
        return f"spills {made.spilled} bytes a thread, and may spill {kernel.spilled}"
    if made.serialized:
        return f"its products wait for each other: {made.serialized}"
    found = sass.instructions(made.cubin, kernel.entry)
    for name in filter(None, (kernel.tensor_core.get(dtype), *kernel.promised)):
        if not found[name]:
            return f"its machine code has no {name}"
    return None
