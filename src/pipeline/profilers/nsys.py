"""NVIDIA Nsight Systems: this very command once more, under `nsys profile` with the source's flags (row B3).

The outer process only starts `nsys` and, when it has ended, puts its report among the run's artifacts. The inner one
marks data, forward, backward and optimizer of the window's steps (NVTX) and starts and stops the recording (the CUDA
profiler's start and stop).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import NonNegativeInt, PositiveInt

from pipeline.contracts import Profiler
from pipeline.errors import Impossible, RunError, UserError
from pipeline.machine.device import Place
from pipeline.profilers import FOLDER, Subject, Tool
from pipeline.runs.noted_path import note_path, noted_path
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

INSIDE = "PIPELINE_UNDER_NSYS"  # set for the inner process: the folder in which it says what run it has become
NEEDED = ("--trace", "--capture-range", "--capture-range-end", "--output")
GPU_METRICS = ("--gpu-metrics-devices", "--gpu-metrics-device")  # of newer and of older versions
GRACE_SECONDS = 60.0  # for nsys to write its report after it was asked to stop


@spec
class Nsys(Profiler):
    """`gpu_metrics`: sample the GPU's counters, Tensor-active share among them (needs the right to; see docs)."""

    backends: ClassVar[tuple[str, ...]] = ("torch",)
    instead: ClassVar[str] = (
        "XLA runs a step as one program, with no forward and backward to mark; "
        "profiler=tensorboard profiles every backend"
    )

    wraps_command: ClassVar[bool] = True

    skip: NonNegativeInt = 20
    steps: PositiveInt = 5
    gpu_metrics: bool = True

    def check_device(self, place: Place, backend: str) -> None:
        """Refuse a CPU, and a machine without nsys."""
        if place.kind == "cpu":
            raise Impossible("profiler=nsys on cpu: Nsight Systems traces CUDA; profiler=torch runs on a CPU")
        if shutil.which("nsys") is None:
            raise UserError(
                "profiler=nsys: no nsys on the PATH; install NVIDIA Nsight Systems, or use profiler=torch, "
                "which traces the GPU without it"
            )
        if INSIDE not in os.environ:
            check_options(self, options())

    def rerun(self) -> int | None:
        """Run this command under nsys and return its exit status; None where it runs under nsys already."""
        return None if INSIDE in os.environ else under_nsys(self, [sys.executable, *sys.orig_argv[1:]])

    def tool(self, experiment: Experiment, run: Run) -> Tool:
        """The marks, inside."""
        return Marks(run)


def under_nsys(settings: Nsys, wrapped: Sequence[str]) -> int:
    """`wrapped` under nsys; its report goes to the run that the command became. Raises RunError without a report."""
    with tempfile.TemporaryDirectory(prefix="pipeline-nsys-") as temporary:
        folder = Path(temporary)
        report = folder / "report.nsys-rep"
        words = command(settings, options(), folder / "report", wrapped)
        process = subprocess.Popen(words, env={**os.environ, INSIDE: temporary})
        try:
            status = process.wait()
        except BaseException:
            _end(process)
            raise
        if status == 0:
            _collect(report, folder / "run")
    return status


@cache
def options() -> frozenset[str]:
    """The options that the installed `nsys profile` has, by its own help. Raises UserError where it has none."""
    done = subprocess.run(["nsys", "profile", "--help"], capture_output=True, text=True, check=False)
    found = frozenset(re.findall(r"(?<![\w-])--[a-z][a-z-]+", done.stdout + done.stderr))
    if not found:
        raise UserError(f"profiler=nsys: nsys profile --help lists no options (exit status {done.returncode})")
    return found


def check_options(settings: Nsys, known: Set[str]) -> None:
    """Refuse an nsys that is too old for what is asked of it. Raises UserError."""
    for name in NEEDED:
        if name not in known:
            raise UserError(f"profiler=nsys: the nsys on the PATH has no option {name}; install a newer Nsight Systems")
    if settings.gpu_metrics and not any(name in known for name in GPU_METRICS):
        raise UserError(
            "profiler.gpu_metrics=true: the nsys on the PATH does not sample a GPU's counters; "
            "use profiler.gpu_metrics=false or install a newer Nsight Systems"
        )


def command(settings: Nsys, known: Set[str], output: Path, wrapped: Sequence[str]) -> list[str]:
    """nsys with the source's flags, and two of ours: where to write, and to let training go on after the window.

    `known`: the options that this nsys has.
    """
    name = next((name for name in GPU_METRICS if name in known), GPU_METRICS[0])
    metrics = [f"{name}=all"] if settings.gpu_metrics else []
    flags = ["--trace", "cuda,osrt,nvtx", "--capture-range", "cudaProfilerApi", *metrics]
    ours = ["--capture-range-end", "stop", "--output", str(output)]
    return ["nsys", "profile", *flags, *ours, *wrapped]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop nsys, which passes it on to the run."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _collect(report: Path, note: Path) -> None:
    """Put the report among the artifacts of the run that `note` names, and send it to where the run is tracked."""
    if not note.exists():
        raise RunError("profiler=nsys: the command under nsys made no run; nothing was recorded")
    run = noted_path(note)
    if not report.exists() or not report.stat().st_size:
        raise RunError(f"profiler=nsys: nsys wrote no report; the run itself is complete ({run})")
    target = run / "artifacts" / FOLDER / report.name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(report, target)
    print(f"profiler=nsys: {os.path.relpath(target)}", file=sys.stderr)
    from pipeline.tracking import record as records

    record = records.read(run)
    if record is not None:
        records.write(run, replace(record, synced=False))
        subprocess.run([sys.executable, "-m", "pipeline.tracking", "sync", str(run.parent)], check=False)


class Marks(Tool):
    """NVTX ranges and the capture range; nsys writes its report itself, when it ends."""

    def __init__(self, run: Run) -> None:
        note_path(Path(os.environ[INSIDE], "run"), run.folder.absolute())

    def attach(self, subject: Subject) -> None:
        import torch

        self.cuda, self.name = torch.cuda, subject.place.torch

    def start(self) -> None:
        self.cuda.cudart().cudaProfilerStart()

    def stop(self) -> None:
        self.cuda.synchronize(self.name)
        self.cuda.cudart().cudaProfilerStop()

    def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
        return self._range(f"step {number}")

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return self._range(name)

    @contextlib.contextmanager
    def _range(self, name: str) -> Iterator[None]:
        self.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            self.cuda.nvtx.range_pop()
