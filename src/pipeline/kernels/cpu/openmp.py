"""OpenMP of a user's source: whether it asks for it, the compiler's flag, and how many threads it takes."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from pipeline.kernels.cpu.compiled import LIMIT_S, Library, compiler

FLAG = "-fopenmp"
ASKS = re.compile(r'^[ \t]*#[ \t]*pragma[ \t]+omp\b|_Pragma\s*\(\s*"\s*omp\b', re.MULTILINE)
SPINS_S = 0.02  # for which libgomp's threads wait for more work by spinning: 300,000 rounds are 6 to 15 ms
TRIAL = "int main() {\n#pragma omp parallel\n    {}\n}\n"
IGNORED = f"#pragma omp is ignored: the compiler does not take {FLAG} (libgomp or libomp may be missing; install it)"


def flags(files: Iterable[Path]) -> tuple[str, ...]:
    """What files need beside other flags: none without `#pragma omp`, or where the compiler has no OpenMP."""
    return (FLAG,) if _asked(files) and available() else ()


def ignored(files: Iterable[Path]) -> str | None:
    """A note that `#pragma omp` has no effect here; None where it has, or the files have none."""
    return IGNORED if _asked(files) and not available() else None


def available() -> bool:
    """Whether the system's compiler makes a library with OpenMP."""
    program = compiler()
    return program is not None and _makes(program)


def set_threads(library: Library, threads: int) -> None:
    """What a parallel region has that names no number: else it is one for each core."""
    if FLAG in library.flags:
        library.loaded()["omp_set_num_threads"](threads)


def _asked(files: Iterable[Path]) -> bool:
    return any(ASKS.search(file.read_text(encoding="utf-8", errors="replace")) for file in files if file.is_file())


@cache
def _makes(program: str) -> bool:
    """Linked too: where the library is missing the compiler alone says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, FLAG, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(Path(folder) / "trial.so")]
        done = subprocess.run(command, input=TRIAL, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.returncode == 0
