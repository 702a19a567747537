"""The bench of stage=devices: source after source, each in its own process, and what went wrong on the way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.machine import energy
from pipeline.machine.ceilings import HAD, Ceiling
from pipeline.machine.device import Place
from pipeline.machine.own_process import OwnProcess
from pipeline.runs.run import Run
from pipeline.stages.apart import measured_apart
from pipeline.stages.devices import kept
from pipeline.stages.devices.sources import CORES, SOURCES, Source
from pipeline.stages.devices.tables import line, write_csv


class Bench:
    """`found`: what was measured on `places`, as it is measured; the file `samples` has it after each source."""

    def __init__(self, rounds: int, run: Run, samples: Path, places: Sequence[Place]) -> None:
        self.rounds, self.run, self.samples, self.places = rounds, run, samples, places
        self.found: list[Ceiling] = []

    def measure(self) -> None:
        """Everything, place after place."""
        for place in self.places:
            for source in SOURCES:
                if place.kind in source.on:
                    self._add(self._measured(source, place))
            if energy.meter(str(place)) is None:
                self._add([Ceiling(name=f"{place}/energy", unit="J/FLOP", missing=energy.UNKNOWN)])

        self._ask_again()

    def _ask_again(self) -> None:
        """The share of the cores once more, as others may have begun since."""
        if not any(one.name == HAD for one in self.found):
            return
        again = self._measured(CORES, Place("cpu"))
        shares = [share for one in again if one.name == HAD for share in one.samples]
        self.found = [replace(one, samples=(*one.samples, *shares)) if one.name == HAD else one for one in self.found]
        self._add([one for one in again if one.fault])

    def _add(self, ceilings: list[Ceiling]) -> None:
        self.found += ceilings
        write_csv(self.samples, self.found)  # what an interrupted run leaves
        for one in ceilings:
            self.run.say(f"{one.name}: {line(one)}")

    def _measured(self, source: Source, place: Place) -> list[Ceiling]:
        name, absent = f"{place}/{source.name}", source.absent(place)
        if absent is not None:
            return [Ceiling(name=name, unit="FLOP/s", missing=absent)]
        found, why = apart(source, str(place), self.rounds)
        return found if why is None else [*found, Ceiling(name=name, unit="FLOP/s", fault=why)]

    def faults(self) -> Iterator[str]:
        """What went wrong, by which the run is FAILED."""
        return (f"{one.name}: {one.fault}" for one in self.found if one.fault)

    def seen(self) -> dict[str, str]:
        """For the receipt: the dtype and the device that were observed."""
        return {one.name: one.seen for one in self.found if one.seen}


def apart(source: Source, place: str, rounds: int) -> tuple[list[Ceiling], str | None]:
    """What a source measures, in a process that knows no other; or had measured, and why that did not end well."""
    with tempfile.TemporaryDirectory(dir=kept.folder()) as temporary:  # on the disk that the data lie on
        job = {"module": source.module, "place": place, "rounds": rounds}
        process = OwnProcess(
            place=place,
            cores=len(os.sched_getaffinity(0)),
            folder=Path(temporary),
            keras_on="jax" if source.name == "jax" else "tensorflow",
        )
        answer, why = measured_apart(process, "pipeline.stages.devices.process", job)
        found = [Ceiling.read(one) for one in answer.get("found", [])]
    return [one for one in found if one.samples or one.missing or one.fault], why
