"""Which instructions a kernel's machine code has: NVIDIA's disassembler, from the package `nvidia-cuda-nvdisasm`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from pipeline.errors import RunError, UserError
from pipeline.kernels.kept import kept
from pipeline.machine.installed import not_installed

# A line of the listing: "/*0a30*/   @!P0 HMMA.16816.F32 R4, R8, R12, R4 ;"
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)
SECTION = re.compile(r"^\.text\.(\w+):$", re.MULTILINE)  # where the code of a kernel begins
LIMIT_S = 120.0
PACKAGE = "nvidia-cuda-nvdisasm"


def instructions(cubin: bytes, entry: str = "") -> Counter[str]:
    """How often each instruction stands in the code, by its name without modifiers: HMMA, LDGSTS, BAR.

    `entry`: the kernel that is meant, where there are several.
    """
    program = disassembler()
    version = importlib.metadata.version(PACKAGE)
    decides = (cubin, version.encode(), entry.encode())
    return Counter(kept("sass", decides, lambda: _counted(cubin, program, entry)))  # it takes half a second


def _counted(cubin: bytes, program: Path, entry: str) -> Counter[str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(program), "--print-code", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RunError(f"nvdisasm: {done.stderr.strip()}")
    _, *sections = SECTION.split(done.stdout)
    by_name = dict(zip(sections[::2], sections[1::2], strict=True))
    return Counter(INSTRUCTION.findall(by_name[entry] if entry else done.stdout))


def disassembler() -> Path:
    """nvdisasm. Raises UserError where its package is missing."""
    namespace = importlib.util.find_spec("nvidia")
    folders = [Path(one) for one in (namespace and namespace.submodule_search_locations) or ()]
    found = next((one for folder in folders if (one := folder / "cu13" / "bin" / "nvdisasm").is_file()), None)
    if found is None:
        raise UserError(f"reading machine code: {not_installed((PACKAGE,), ('kernels',))}")
    return found
