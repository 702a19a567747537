"""stage=wmma on a CPU: the ladder's last rung against NumPy's BLAS on the same threads, and how long the stage
and a kernel in the shim take.

The stage verifies every kernel at every size before it times it. Rounds are runs of the whole command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise

from bench.measure import Side, alternate, at_least, at_most, pipeline, row, wall

ROUNDS = 3  # of minutes each
SQUARE, RAGGED = (512, 1024, 2048, 4096), ("[513,1027,771]", "[1000,999,1001]", "[2047,515,1023]")
LADDER = ("cpu_naive", "cpu_order", "cpu_blocked", "cpu_vector", "cpu_packed", "cpu_threads")
LAST, RUNG_SIZE = LADDER[-1], "512x512x512"
SHARE, SHARE_RAGGED, FIRST_S, WHOLE_S, SHIM_S = 0.9, 0.8, 10.0, 120.0, 0.2
BARE = ("stage=wmma", "tracking=none")
IN_SHIM = """
import time
from pipeline.kernels.cuda.naive import Naive
from pipeline.kernels.gemm import Gemm, operands
launch = Naive().rehearse(operands(Gemm(m=128, n=128, k=128, dtype="fp16"), 0))
launch.run()
began = time.perf_counter()
launch.run()
print(time.perf_counter() - began)
"""
HELD_BACK = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # by which NumPy's BLAS computes as for another processor


def run(rounds: int = ROUNDS) -> list[dict[str, object]]:
    """Rows of the table."""
    for name in HELD_BACK:
        os.environ.pop(name, None)
    large = Side("the last rung and NumPy", lambda: measured(("numpy", LAST), (*map(str, SQUARE), *RAGGED)))
    rungs = Side("the ladder", lambda: measured(("numpy", *LADDER), ("512",), "stage.threads=1"))
    times = Side("the bare stage", stage_times)
    shim = Side("the shim", shim_time)
    alternate([large, rungs, times, shim], rounds, uncounted=0)
    rows = [
        at_least(row(f"{LAST} / numpy at {size}", large.values(f"{size}/{LAST}/share"), "x"), floor)
        for size, floor in sizes().items()
    ]
    for below, rung in pairwise(LADDER[:-1]):  # the last one's gain is that of its threads
        rates = [rungs.values(f"{RUNG_SIZE}/{name}/sustained") for name in (rung, below)]
        gains = [after / before for after, before in zip(*rates, strict=True)]
        rows.append(row(f"{rung} / {below} at 512, one thread", gains, "x"))
    rows.append(at_most(row("the first result of stage=wmma", times.values("first"), "s"), FIRST_S))
    rows.append(at_most(row("the same with nothing compiled before", times.values("first anew"), "s"), FIRST_S))
    rows.append(at_most(row("stage=wmma as a whole, every kernel verified", times.values("whole"), "s"), WHOLE_S))
    rows.append(at_most(row("naive at 128³ in the shim, on one core", shim.values("seconds"), "s"), SHIM_S))
    return rows


def sizes() -> dict[str, float]:
    """The sizes as metrics name them, with what the last rung has to reach there."""
    ragged = {one.strip("[]").replace(",", "x"): SHARE_RAGGED for one in RAGGED}
    return {f"{size}x{size}x{size}": SHARE for size in SQUARE} | ragged


def measured(kernels: tuple[str, ...], sizes: tuple[str, ...], *more: str) -> Mapping[str, float]:
    """The metrics of a run of the stage."""
    words = (f"stage.kernels=[{','.join(kernels)}]", f"stage.sizes=[{','.join(sizes)}]", "stage.longest=5")
    found = pipeline("stage=wmma", "stage.dtype=fp32", "stage.architectures=[]", "tracking=none", *words, *more)
    kept = {name: value for name, value in found.items() if name.endswith(("/share", "/sustained"))}
    if not any(name.endswith("/share") for name in kept):
        raise SystemExit("stage=wmma keeps no share where other processes are at work; run this on an idle machine")
    return kept


def stage_times() -> Mapping[str, float]:
    """Seconds to the first line with a rate, also of one that has to compile everything, and to the end of a run."""
    with tempfile.TemporaryDirectory() as folder:
        found = {"first": first_result(folder), "whole": wall(command(), folder=folder)["seconds"]}
        return found | {"first anew": first_result(folder, {"PIPELINE_CACHE": f"{folder}/cache"})}


def shim_time() -> Mapping[str, float]:
    """Seconds of one launch of the course's kernel by the CPU, once it is compiled and was run."""
    found = subprocess.run([sys.executable, "-c", IN_SHIM], capture_output=True, text=True, check=True)
    return {"seconds": float(found.stdout)}


def command() -> list[str]:
    """The stage as a user types it."""
    return [sys.executable, "-m", "pipeline", *BARE]


def first_result(folder: str, more: Mapping[str, str] | None = None) -> float:
    """Seconds until the stage says a rate; it is ended then."""
    began = time.perf_counter()
    both: int = subprocess.STDOUT
    environment = os.environ | (more or {})
    with subprocess.Popen(
        command(), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=both, text=True
    ) as process:
        assert process.stdout is not None
        found = next((time.perf_counter() - began for line in process.stdout if "GFLOP/s" in line), None)
        process.terminate()
    if found is None:
        raise SystemExit(f"{' '.join(command())}: said no rate")
    return found
