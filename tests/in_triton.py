"""Where Triton interprets (TRITON_INTERPRET=1): a program's mutants, one after the other, and which of them survive.

python in_triton.py <folder of the programs> <mutants as JSON: {module: {file: [[old, new], ...]}}>
"""

from __future__ import annotations

import importlib
import json
import linecache
import sys
from pathlib import Path

from pipeline.errors import RunError
from pipeline.kernels.check import check
from pipeline.kernels.gemm import Gemm, operands
from pipeline.kernels.triton.launch import TritonLaunch
from pipeline.kernels.triton.programs import descriptors, pointers, tiles
from pipeline.kernels.triton.source import TritonSource, by_rows
from pipeline.kernels.triton.triton import Triton
from pipeline.kernels.triton.triton_tma import TritonTma

SMALL = (16, 32, 16)
KERNELS: dict[str, TritonSource] = {"pointers": Triton(block=SMALL), "descriptors": TritonTma(block=SMALL)}
RAGGED = Gemm(m=37, n=53, k=69, dtype="fp16", alpha=-0.5, pad=(11, 11, 11))
LARGE = Gemm(m=150, n=88, k=72, dtype="fp16", order="row", alpha=-0.5, beta=1.0, pad=(8, 8, 5))


def right(kernel: TritonSource) -> bool:
    """Whether it computes both problems."""
    for module in (tiles, pointers, descriptors):
        importlib.reload(module)
    for gemm, nan_c in ((RAGGED, True), (LARGE, False)):
        made = operands(gemm, 0, nan_c=nan_c)
        try:
            launch = TritonLaunch(kernel, by_rows(made), "cpu")
            launch.run()
        except RunError:
            return False
        if check(made, launch.result()).fault is not None:
            return False
    return True


def survivors(folder: Path, mutants: dict[str, dict[str, list[list[str]]]]) -> list[list[str]]:
    """Module, file and what was replaced."""
    found = []
    for module, files in mutants.items():
        assert right(KERNELS[module])
        for name, changes in files.items():
            file = folder / f"{name}.py"
            text = file.read_text()
            for old, new in changes:
                assert old in text, old
                file.write_text(text.replace(old, new, 1))
                linecache.clearcache()
                if right(KERNELS[module]):
                    found.append([module, name, old])
            file.write_text(text)
    return found


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    print(json.dumps(survivors(Path(sys.argv[1]), json.loads(sys.argv[2]))))
