"""What a process without this package makes of an export."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from pipeline.backends.shared.exported import QUIET, READER
from pipeline.errors import RunError
from pipeline.runs.json_files import cannot_write

EXAMPLES = 64  # of the test set, on which the outputs are compared
LONG = 600.0  # seconds for another process to import a framework, read and compute


def read_back(
    form: str, folder: Path, x: np.ndarray | Path, backend: str, batch: int = EXAMPLES, limit_s: float | None = LONG
) -> Mapping[str, np.ndarray]:
    """What a process that cannot import this package reads, and its outputs for `x`, an array or a file of one, in
    batches. Raises RunError."""
    with tempfile.TemporaryDirectory() as temporary:
        inputs, target = x if isinstance(x, Path) else Path(temporary) / "x.npy", Path(temporary) / "read.npz"
        if not isinstance(x, Path):
            write_array(inputs, x.dtype, x.shape, [x])
        double = np.load(inputs, mmap_mode="r").dtype == np.float64
        chosen = {"CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
        environment = {**QUIET, **os.environ, **chosen, **({"JAX_ENABLE_X64": "true"} if double else {})}
        command = [sys.executable, "-I", str(READER), form, str(folder), str(inputs), str(target), str(batch)]
        try:
            done = subprocess.run(
                command, cwd=temporary, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"stage.format={form}: was not read within {limit_s:.0f} s") from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise RunError(f"stage.format={form}: cannot be read without this package: {lines[-1][:300]}")
        with np.load(target) as read:
            return {name: read[name] for name in read.files}


def write_array(path: Path, dtype: np.dtype | str, shape: tuple[int, ...], parts: Iterable[np.ndarray]) -> None:
    """A .npy file of an array that may be larger than memory, from its parts in their order. Raises UserError.

    Not by a memory map: where the disk is full, a write to one kills the process (SIGBUS). `np.save` leaves out why.
    """
    about = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    try:
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, about)
            for part in parts:
                file.write(np.ascontiguousarray(part, dtype).data)
    except OSError as error:
        raise cannot_write(path, error, key="") from error
