"""Programs of Triton's compiled for a GPU that need not be there, and their machine code read."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.contracts.kernels import MachineCode
from pipeline.errors import RunError
from pipeline.kernels import sass
from pipeline.kernels.gemm import Gemm
from pipeline.kernels.triton.cache import keep_compiled
from pipeline.machine.architecture import block_shared

if TYPE_CHECKING:
    from pipeline.kernels.triton.source import TritonSource

POINTERS = {"fp16": "*fp16", "bf16": "*bf16", "tf32": "*fp32"}
TENSOR_CORE = {8: "HMMA", 9: "HGMMA", 10: "UTCHMMA", 11: "UTCHMMA", 12: "HMMA"}  # by the first digits
COUNTED = ("HGMMA", "UTCHMMA", "HMMA", "UTMALDG", "LDGSTS", "LDSM", "BAR")
SIZES = ("M", "N", "K", "lda", "ldb", "ldc")
USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
LIMIT_S = 60.0


def machine_code(kernel: TritonSource, dtype: str, architecture: int) -> MachineCode:
    """Of the build for sizes and leading dimensions that are multiples of 16.

    Raises RunError where it does not compile, where the machine code is not what the kernel promises, and where no
    block of it fits into the shared memory.
    """
    kernel = kernel.fitted(block_shared(architecture) or 0)
    made = _compiled(kernel, dtype, architecture)
    counted = sass.instructions(made.asm["cubin"])
    registers, stack = _usage(made.asm["cubin"])
    shared = int(made.metadata.shared)
    fault = _fault(kernel, architecture, counted, shared)
    if fault:
        raise RunError(f"{kernel.name}, {dtype}, sm_{architecture}: {fault}")
    return MachineCode(
        registers=registers,
        spilled=stack,
        shared=shared,
        instructions={name: counted[name] for name in COUNTED},
    )


def _fault(kernel: TritonSource, architecture: int, counted: Any, shared: int) -> str | None:
    """What is wrong with a build, in words."""
    for name in filter(None, (TENSOR_CORE.get(architecture // 10), kernel.copies)):
        if not counted[name]:
            return f"its machine code has no {name}"
    limit = block_shared(architecture)
    if limit is not None and shared > limit:
        there = f"{limit:,}; use a smaller block or fewer stages"
        return f"takes {shared:,} bytes of shared memory a block, and there are {there}"
    return None


def _compiled(kernel: TritonSource, dtype: str, architecture: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.errors import TritonError

    from pipeline.kernels.triton.messages import one_line

    keep_compiled()
    constants = kernel.constants(Gemm(m=16, n=16, k=16, dtype=dtype, order="row"))
    pointer = POINTERS[dtype]
    types = {"A": pointer, "B": pointer, "C": "*fp32", "D": "*fp32"} | dict.fromkeys(SIZES, "i32")
    types |= {"alpha": "fp32", "beta": "fp32"} | dict.fromkeys(constants, "constexpr")
    by_16 = {(place,): [["tt.divisibility", 16]] for place in range(4 + len(SIZES))}
    source = ASTSource(kernel.program(), types, constants, by_16)
    try:
        return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=kernel.options)
    except (TritonError, RuntimeError) as error:
        raise RunError(f"{kernel.name}, {dtype}, sm_{architecture}: Triton: {one_line(error)}") from error


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack, where registers are spilled to."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(program), "--dump-resource-usage", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    found = USAGE.search(done.stdout)
    if found is None:
        raise RunError(f"cuobjdump: {done.stderr.strip() or done.stdout.strip()}")
    return int(found[1]), int(found[2])
