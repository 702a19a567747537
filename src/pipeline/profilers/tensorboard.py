"""TensorBoard: scalars as training goes, the graph, weight histograms, a profile of the window (rows A6, C5)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import NonNegativeInt

from pipeline.contracts import Profiler
from pipeline.errors import RunError
from pipeline.machine.device import Place
from pipeline.machine.installed import check_installed
from pipeline.profilers import Subject, Tool
from pipeline.runs.records import records_until
from pipeline.spec import spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.runs.run import Run

FOLDER = "tensorboard"  # below the run's artifacts


@spec
class TensorBoard(Profiler):
    """`steps: 0` leaves the profile out; the other three are cheap."""

    backends: ClassVar[tuple[str, ...]] = ("torch", "tensorflow", "jax")
    instead: ClassVar[str] = ""

    skip: NonNegativeInt = 20
    steps: NonNegativeInt = 5
    graph: bool = True
    histograms: bool = True

    def check_device(self, place: Place, backend: str) -> None:
        """Refuse before any framework is imported where TensorBoard is not installed."""
        check_installed({"profiler=tensorboard": ("tensorboard",)})

    def tool(self, experiment: Experiment, run: Run) -> Tool:
        """The event files, and the framework's own profiler."""
        return Board(self, experiment.backend.name, run)


class Board(Tool):
    """Writes below artifacts/tensorboard/. Every record of the journal is a scalar as well."""

    def __init__(self, settings: TensorBoard, backend: str, run: Run) -> None:
        from pipeline.profilers.event_files import EventFiles, histograms_in

        self.settings, self.backend = settings, backend
        self.folder = run.artifact(f"{FOLDER}/events").parent
        self.goes_on = run.checkpoint is not None
        before = sorted(self.folder.glob("events.out.*"))
        self.events = EventFiles(self.folder)
        if run.checkpoint is not None:  # what came after it is left out
            kept = run.checkpoint.progress
            for record in records_until(run.folder, kept["journal_bytes"]):
                self.events.scalars(record.metrics, record.step)
            self.events.copy(histograms_in(before, until=len(kept["epochs"])))
        for file in before:
            file.unlink()
        self.tracer = TRACERS[backend](self.folder)
        run.recorders.append(self.events.scalars)

    def attach(self, subject: Subject) -> None:
        from pipeline.profilers.graphs import GRAPHS

        self.subject = subject
        self.tracer.attach(subject)
        if self.settings.graph:
            self.events.graph(GRAPHS[self.backend](subject))
        if not self.goes_on:
            self._histograms(0)

    def start(self) -> None:
        self.tracer.start()

    def stop(self) -> None:
        self.tracer.stop()

    def write(self, window: Mapping[str, Any]) -> None:
        self.tracer.write(window)
        if not any(path.stat().st_size for path in self.folder.glob("plugins/profile/*/*.xplane.pb")):
            raise RunError(f"profiler=tensorboard: {self.backend}'s profiler wrote no profile of the window")

    def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
        return self.tracer.step(number)

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return self.tracer.phase(name)

    def end_epoch(self, number: int) -> None:
        self._histograms(number)

    def close(self) -> None:
        self.events.close()

    def _histograms(self, epoch: int) -> None:
        if self.settings.histograms:
            weights = {f"weights/{name}": array for name, array in self.subject.weights().items()}
            self.events.histograms(weights, epoch)


class TensorFlowTracer(Tool):
    """tf.profiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def start(self) -> None:
        import tensorflow as tf

        tf.profiler.experimental.start(self.folder)

    def stop(self) -> None:
        import tensorflow as tf

        tf.profiler.experimental.stop()

    def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
        import tensorflow as tf

        return tf.profiler.experimental.Trace("train", step_num=number, _r=1)


class JaxTracer(Tool):
    """jax.profiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def start(self) -> None:
        import jax

        jax.profiler.start_trace(self.folder)

    def stop(self) -> None:
        import jax

        jax.profiler.stop_trace()

    def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
        import jax

        return jax.profiler.StepTraceAnnotation("train", step_num=number)


def _torch_tracer(folder: Path) -> Tool:
    """torch.profiler, and its trace in the format that TensorBoard reads."""
    from pipeline.profilers.kineto import Kineto

    return Kineto(partial(_write_xplane, folder), shapes=False, memory=False, stacks=False)


def _write_xplane(folder: Path, profile: Any, *_: object) -> None:
    import gzip
    import json
    import socket
    import tempfile
    import time

    from pipeline.profilers.xspace import of_chrome_trace

    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "trace.json.gz"
        profile.export_chrome_trace(str(path))
        trace = json.loads(gzip.decompress(path.read_bytes()))
    named = folder / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S") / f"{socket.gethostname()}.xplane.pb"
    named.parent.mkdir(parents=True)
    named.write_bytes(of_chrome_trace(trace))


TRACERS = {"torch": _torch_tracer, "tensorflow": TensorFlowTracer, "jax": JaxTracer}
