"""A command in a process that knows one framework at the most, on so many cores, with nothing compiled before."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import RunError

LONG = 1800.0  # seconds for one process
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class OwnProcess:
    """`place`: the device, as the receipt names it. `cores`: of the CPU, as many as threads. `folder`: where it runs,
    and compiles into. `keras_on`: Keras's backend in it."""

    place: str
    cores: int
    folder: Path
    keras_on: str = "tensorflow"

    def run(self, command: Sequence[str]) -> None:
        """Until it ends. Raises RunError with the last thing it said."""
        with on_cores(self.cores):
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        try:
            _, said = process.communicate(timeout=LONG)
        except subprocess.TimeoutExpired:
            raise RunError(f"did not end within {LONG:.0f} s") from None
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            lines = said.strip().splitlines() or ["it said nothing"]
            raise RunError(f"ended with exit status {process.returncode}: {lines[-1][:300]}")

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Threads as many as cores, no GPU for a CPU's job, and empty caches of compiled programs."""
        found = {**given, **dict.fromkeys(THREADS, str(self.cores)), "TF_CPP_MIN_LOG_LEVEL": "3"}
        found |= {"KERAS_BACKEND": self.keras_on, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_ENABLE_X64": "true"}
        found |= {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")}
        found |= {"TRITON_CACHE_DIR": str(self.folder / "triton")}
        if self.place == "cpu":
            found |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
        return found


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """A process that is started inside gets the first `count` of our cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
