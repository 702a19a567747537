"""Memory over time: what the process holds in RAM, or on a GPU what torch's allocator has given out."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from pipeline.contracts import Profiler
from pipeline.errors import Impossible
from pipeline.machine.device import Place
from pipeline.profilers import FOLDER, Subject, Tool
from pipeline.report.csv_file import csv_file
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run


@spec
class Memory(Profiler):
    """A sample every `interval` seconds, and one at each step's begin and end."""

    backends: ClassVar[tuple[str, ...]] = ("torch", "tensorflow", "jax")
    instead: ClassVar[str] = ""

    skip: NonNegativeInt = 20
    steps: PositiveInt = 5
    interval: float = Field(default=0.001, gt=0.0, le=1.0)

    def check_device(self, place: Place, backend: str) -> None:
        """Refuse a GPU whose framework keeps no history of its allocations."""
        if place.kind == "gpu" and backend != "torch":
            raise Impossible(
                f"profiler=memory with backend={backend} on {place}: only torch's allocator records its history; "
                "backend=torch or device=cpu runs, and profiler=tensorboard shows the device's memory"
            )

    def tool(self, experiment: Experiment, run: Run) -> Tool:
        """The sampler; on a GPU also torch's own history of allocations."""
        return Sampler(self.interval, run)


class Sampler(Tool):
    """A thread that samples the memory while the window is open."""

    def __init__(self, interval: float, run: Run) -> None:
        self.interval, self.run, self.gpu = interval, run, False

    def attach(self, subject: Subject) -> None:
        self.columns: tuple[str, ...]
        self.look, self.columns = _process(), ("process_bytes",)
        if subject.place.kind == "gpu":
            self.look, self.columns, self.gpu = _cuda(subject.place), ("allocated_bytes", "reserved_bytes"), True

    def start(self) -> None:
        if self.gpu:
            import torch

            torch.cuda.memory._record_memory_history(max_entries=1_000_000)
        self.samples: list[tuple[float, int, tuple[int, ...]]] = []
        self.number, self.began, self.lock = 0, time.perf_counter(), threading.Lock()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Measure no more. The history is the whole process's and makes every allocation dearer: it ends here too."""
        self.ended.set()
        self.thread.join()
        if self.gpu:
            import torch

            self.snapshot = torch.cuda.memory._snapshot()  # to stop recording empties it
            torch.cuda.memory._record_memory_history(enabled=None)

    def step(self, number: int) -> Step:
        return Step(self, number)

    def note(self, number: int | None = None) -> None:
        """A sample now; `number`: of the step that begins."""
        with self.lock:  # so that the samples of both threads stand in the order of their times
            self.number = number or self.number
            self.samples.append((time.perf_counter() - self.began, self.number, self.look()))

    def write(self, window: Mapping[str, Any]) -> None:
        from pipeline.profilers.memory_figure import timeline

        with csv_file(self.run.artifact(f"{FOLDER}/memory.csv")) as rows:
            rows.writerow(("seconds", "step", *self.columns))
            rows.writerows((f"{seconds:.6f}", step, *values) for seconds, step, values in self.samples)
        timeline(self.run.artifact(f"{FOLDER}/memory.png"), self.samples, self.columns)
        if self.gpu:
            with self.run.artifact(f"{FOLDER}/memory_snapshot.pickle").open("wb") as history:
                pickle.dump(self.snapshot, history)

    def _sample(self) -> None:
        while not self.ended.wait(self.interval):
            if self.number:
                self.note()


class Step:
    """One step: a sample at its begin and at its end."""

    def __init__(self, sampler: Sampler, number: int) -> None:
        self.sampler, self.number = sampler, number

    def __enter__(self) -> None:
        self.sampler.note(self.number)

    def __exit__(self, *_: object) -> None:
        self.sampler.note()


def _process() -> Any:
    import psutil

    process = psutil.Process()
    return lambda: (process.memory_info().rss,)


def _cuda(place: Place) -> Any:
    """Of the run's GPU by name: a new thread's current device is the first GPU."""
    import torch

    name = place.torch
    return lambda: (torch.cuda.memory_allocated(name), torch.cuda.memory_reserved(name))
