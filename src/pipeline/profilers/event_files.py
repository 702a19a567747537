"""TensorBoard's event files, written by its own writer and without TensorFlow, which it would import for its paths."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

NO_TENSORFLOW = "tensorboard.compat.notf"  # TensorBoard takes its own stand-in where this can be imported
FLUSH_SECONDS = 0.5
BUCKETS = 30

if "tensorflow" not in sys.modules:
    sys.modules.setdefault(NO_TENSORFLOW, ModuleType(NO_TENSORFLOW))

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader  # noqa: E402
from tensorboard.compat.proto.event_pb2 import Event  # noqa: E402
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary  # noqa: E402
from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: E402

from pipeline.cli.exits import stop_held_back  # noqa: E402


class EventFiles:
    """A folder of events. What is written is on the disk within half a second of the next record, and at the close."""

    def __init__(self, folder: Path) -> None:
        self.writer = EventFileWriter(str(folder))
        self.flushed = 0.0

    @stop_held_back()
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """A point on each named curve."""
        points = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._add(Event(summary=Summary(value=points)), step)
        if time.monotonic() - self.flushed > FLUSH_SECONDS:
            self.flush()

    @stop_held_back()
    def histograms(self, arrays: Mapping[str, np.ndarray], step: int) -> None:
        """The distribution of the finite numbers of each array."""
        finite = {name: array[np.isfinite(array)] for name, array in arrays.items()}  # a mask may hold infinities
        found = [Summary.Value(tag=name, histo=histogram(array)) for name, array in finite.items() if array.size]
        self._add(Event(summary=Summary(value=found)), step)
        self.flush()

    @stop_held_back()
    def copy(self, events: Iterable[Event]) -> None:
        """Events of other files, as they are."""
        for event in events:
            self.writer.add_event(event)
        self.flush()

    @stop_held_back()
    def graph(self, definition: Any) -> None:
        """A model's graph (a GraphDef of TensorFlow's or of TensorBoard's own)."""
        self._add(Event(graph_def=definition.SerializeToString()), 0)
        self.flush()

    @stop_held_back()
    def flush(self) -> None:
        """On the disk now, for a TensorBoard that follows."""
        self.writer.flush()
        self.flushed = time.monotonic()

    @stop_held_back()
    def close(self) -> None:
        """The last word."""
        self.writer.close()

    def _add(self, event: Event, step: int) -> None:
        event.wall_time, event.step = time.time(), step
        self.writer.add_event(event)


def histograms_in(files: Iterable[Path], until: int) -> list[Event]:
    """The events with histograms of steps up to `until`, each step's once. What a crash cut off is left out."""
    found: dict[int, Event] = {}
    for file in files:
        for record in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(record)
            if event.step <= until and any(value.HasField("histo") for value in event.summary.value):
                found[event.step] = event
    return list(found.values())


def histogram(array: np.ndarray) -> HistogramProto:
    """`array` in equal buckets between its extremes; its statistics are exact."""
    values = array.astype(np.float64).ravel()
    low, high = float(values.min()), float(values.max())
    apart = high - low > BUCKETS * np.spacing(max(abs(low), abs(high)))  # NumPy refuses narrower buckets
    counts, edges = np.histogram(values, BUCKETS, range=(low, high) if apart else (low - 0.5, high + 0.5))
    return HistogramProto(
        min=low,
        max=high,
        num=values.size,
        sum=float(values.sum()),
        sum_squares=float(np.square(values).sum()),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )
