"""A kernel compiled for a GPU, and its machine code inspected before anything is launched."""

from __future__ import annotations

import base64
import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import RunError
from pipeline.kernels import nvrtc, sass
from pipeline.kernels.kept import kept
from pipeline.kernels.nvrtc import Compiled

if TYPE_CHECKING:
    from pipeline.kernels.cuda.function import CudaFunction


HANDED_OVER = "USETMAXREG"  # setmaxnreg


def built(kernel: CudaFunction, dtype: str, architecture: int) -> Compiled:
    """Raises UserError where it does not compile, RunError where the machine code is not what the kernel promises."""
    made = _compiled(kernel, dtype, architecture)
    fault = _fault(kernel, dtype, made)
    if fault:
        raise RunError(f"{kernel.name}, {dtype}, sm_{architecture}: {fault}")
    return made


def _compiled(kernel: CudaFunction, dtype: str, architecture: int) -> Compiled:
    """A kernel of ours is kept; what a user's includes is not known for certain."""

    defines = kernel.defines(dtype, architecture)

    def compiled() -> Compiled:
        return nvrtc.compiled(
            kernel.source, architecture, defines, kernel.beside, kernel.entry, specific=kernel.specific
        )

    if hasattr(kernel, "file") or nvrtc.missing_packages():
        return compiled()
    versions = " ".join(importlib.metadata.version(name) for name in nvrtc.PACKAGES)
    files = (kernel.source, *kernel.beside, Path(nvrtc.__file__))  # which has the options
    decides = (
        f"{defines} {architecture} {kernel.entry} {kernel.specific} {versions}".encode(),
        *(one.read_bytes() for one in files),
    )
    found = kept(f"{kernel.source.stem}-sm_{architecture}", decides, lambda: _plain(compiled()))
    return Compiled(**found | {"cubin": base64.b64decode(found["cubin"])})


def _plain(made: Compiled) -> dict[str, object]:
    """As JSON can write it."""
    return {**vars(made), "cubin": base64.b64encode(made.cubin).decode()}


def _fault(kernel: CudaFunction, dtype: str, made: Compiled) -> str | None:
    """What is wrong with the machine code, in words."""
    if made.registers > kernel.registers:
        return f"takes {made.registers} registers a thread, and may take {kernel.registers}"
    if HANDED_OVER in kernel.promised and made.registers != kernel.registers:
        return f"takes {made.registers} registers a thread; with fewer than {kernel.registers} it would wait for ever"
    if made.spilled > kernel.spilled:
        return f"spills {made.spilled} bytes a thread, and may spill {kernel.spilled}"
    if made.serialized:
        return f"its products wait for each other: {made.serialized}"
    found = sass.instructions(made.cubin, kernel.entry)
    for name in filter(None, (kernel.tensor_core.get(dtype), *kernel.promised)):
        if not found[name]:
            return f"its machine code has no {name}"
    return None
