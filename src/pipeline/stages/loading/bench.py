"""The bench of stage=loading: each framework on each source in its own process, and what went wrong on the way."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.shared.load_bench import Found, median_rate
from pipeline.backends.shared.load_settings import Asked
from pipeline.datasets import Data
from pipeline.machine.own_process import OwnProcess
from pipeline.runs.run import Run
from pipeline.stages.apart import measured_apart
from pipeline.stages.loading.best import best
from pipeline.stages.loading.limit import Copied, copied
from pipeline.stages.loading.sources import Stored

MODULES = {"torch": "pipeline.backends.torch.loading", "tensorflow": "pipeline.backends.keras.loading_tensorflow"}
Key = tuple[str, str]  # source and framework


@dataclass(frozen=True, kw_only=True)
class Job:
    """What each process is asked. `seconds`: of a sample at least; `step_s`: of a training's step of 128 images."""

    data: Data
    asked: Asked
    seed: int
    rounds: int
    finals: int
    seconds: float
    step_s: float
    place: str
    cores: int


class Bench:
    """What was found, as it is found. `absent`: the frameworks that cannot use the device, and why.

    `parts`: seconds of each part of a pass, of each round. `ended`: processes that did not end well.
    """

    def __init__(self, job: Job, absent: Mapping[str, str], run: Run) -> None:
        self.job, self.absent, self.run = job, absent, run
        self.sources: dict[str, Stored] = {}
        self.found: dict[Key, list[Found]] = {}
        self.parts: dict[Key, list[dict[str, float]]] = {}
        self.ended: dict[Key, str] = {}
        self.limit: Copied | None = None

    @property
    def every(self) -> list[Found]:
        """What was found of every setting, of all sources and frameworks."""
        return [one for found in self.found.values() for one in found]

    def measure(self, source: Stored, framework: str) -> None:
        """Verify and time the settings of a framework on a source."""
        if framework in self.absent:
            return
        key = source.name, framework
        self.sources[source.name] = source
        self._ask(source, framework)
        for one in self.found.get(key, ()):
            if one.fault:
                self.run.say(f"{source.name}, {framework}: {one.name}: WRONG, so it is not timed: {one.fault}")
        fastest = best(self.found.get(key, ()))
        if fastest is not None:
            rate = median_rate(fastest.final)
            self.run.say(f"{source.name}, {framework}: {rate:,.0f} images/s by {fastest.name}")

    def measure_limit(self) -> None:
        """How fast memory is copied, when nothing else is measured."""
        self.limit = copied(self.job.cores)

    def _ask(self, source: Stored, framework: str) -> None:
        """Start the process, and read what it found, of one that ended badly too."""
        key = source.name, framework
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            np.savez(folder / "data.npz", x=source.x, y=source.y)
            process = OwnProcess(place=self.job.place, cores=self.job.cores, folder=folder)
            job = self._plain(source, framework)
            answer, why = measured_apart(process, "pipeline.backends.shared.load_process", job)
        if why is not None:
            self.ended[key] = why
            self.run.say(f"{source.name}, {framework}: {why}")
        if answer:
            self.found[key] = [Found.read(one) for one in answer["found"]]
            self.parts[key] = answer["parts"]

    def _plain(self, source: Stored, framework: str) -> dict[str, Any]:
        job, data = self.job, self.job.data
        classes: tuple[str, ...] = data.task.classes  # type: ignore[attr-defined]  # of a classification
        return source.plain() | {
            "module": MODULES[framework],
            "settings": job.asked.of(framework, source.name).plain(),
            "classes": classes,
            "scale": data.scale,
            "normalisation": data.normalisation and data.normalisation.plain(),
            "seed": job.seed,
            "rounds": job.rounds,
            "finals": job.finals,
            "seconds": job.seconds,
            "step_s": job.step_s,
            "place": job.place,
        }

    def parts_of(self, key: Key) -> dict[str, float]:
        """Median seconds of each part of a pass of the plainest setting, and what is left of its time.

        What is left is Python between the parts, and what a loader adds; below zero where a part by itself is slower.
        """
        each = self.parts[key]
        found = {part: statistics.median(one[part] for one in each if part in one) for part in each[0]}
        base = self.found[key][0]
        if base.samples:
            found["rest"] = self.sources[key[0]].examples / median_rate(base.samples) - sum(found.values())
        return found

    def faults(self) -> Iterator[str]:
        """What went wrong, by which the run is FAILED."""
        for (source, framework), why in self.ended.items():
            yield f"{source}, {framework}: {why}"
        for (source, framework), found in self.found.items():
            for one in found:
                if one.fault:
                    yield f"not timed, because wrong: {source}, {framework}: {one.name}: {one.fault}"

    def facts(self) -> list[dict[str, object]]:
        """For the receipt: what was compared of each setting."""
        return [
            {"source": source, "framework": framework, "setting": one.name, "batches": one.batches, "fault": one.fault}
            for (source, framework), found in self.found.items()
            for one in found
        ]
