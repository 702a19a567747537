"""The bench of stage=graph: each framework's forms, then its ways, and what went wrong on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from pipeline.backends.shared.form_bench import Found
from pipeline.errors import RunError
from pipeline.runs.run import Run
from pipeline.stages.graph.amortised import spread, steps
from pipeline.stages.graph.processes import Asked, Job, Saved, first_calls, measured

MODULES = {
    "numpy": "pipeline.backends.shared.two_layer_numpy",
    "torch": "pipeline.backends.torch.two_layer",
    "tensorflow": "pipeline.backends.keras.two_layer_tensorflow",
    "jax": "pipeline.backends.keras.two_layer_jax",
}


class Bench:
    """What was found, as it is found. `absent`: the frameworks that cannot use the device, and why.

    `ways`: by framework. `saved`: by the way whose graph it is. `ended`: frameworks whose process did not end well.
    """

    def __init__(self, job: Job, absent: Mapping[str, str], run: Run) -> None:
        self.job, self.absent, self.run = job, absent, run
        self.forms: list[Found] = []
        self.ways: dict[str, list[Found]] = {}
        self.saved: dict[str, Saved] = {}
        self.ended: dict[str, str] = {}

    @property
    def every(self) -> list[Found]:
        """The forms, then the ways."""
        return [*self.forms, *(one for found in self.ways.values() for one in found)]

    def measure_forms(self, framework: str) -> None:
        """Verify and time the forms of a framework, and say of each what it is."""
        found, _ = self._measured(framework, "FORMS")
        self.forms += found

    def measure_ways(self, framework: str) -> None:
        """The same of the ways to run a step and of their first calls; and run the graphs that can be saved."""
        self.ways[framework], saved = self._measured(framework, "WAYS")
        self.saved |= saved
        for _ in range(self.job.starts):
            for one in self.ways[framework]:
                if one.samples:
                    self._start(framework, one)

    def _measured(self, framework: str, kinds: Literal["FORMS", "WAYS"]) -> tuple[list[Found], dict[str, Saved]]:
        if framework in self.absent or framework in self.ended:
            return [], {}
        job = replace(self.job, place="cpu") if framework == "numpy" else self.job
        try:
            found, saved = measured(job, asked(framework, kinds))
        except RunError as error:
            self.ended[framework] = str(error)
            self.run.say(f"{framework}: {error}")
            return [], {}
        for one in found:
            self.run.say(f"{one.name}: {described(one)}")
        return found, saved

    def _start(self, framework: str, found: Found) -> None:
        try:
            first, second = first_calls(self.job, asked(framework, "WAYS"), found.name)
        except RunError as error:
            found.fault, found.samples = f"its first calls: {error}", {}
        else:
            found.first.append(first)
            found.second.append(second)

    def faults(self) -> Iterator[str]:
        """What went wrong, by which the run is FAILED."""
        for framework, why in self.ended.items():
            yield f"{framework}: {why}"
        for one in self.every:
            if one.fault:
                yield f"not timed, because wrong: {one.name}: {one.fault}"
            if one.unsaved:
                yield f"{one.name} could not be saved: {one.unsaved}"
        for name, read in self.saved.items():
            if read.fault:
                yield f"{name}, saved and run without this package: {read.fault}"

    def facts(self) -> list[dict[str, object]]:
        """For the receipt: what was observed of each form and way."""
        return [
            {name: value for name, value in one.plain().items() if name != "samples" and value is not None}
            for one in self.every
        ]


def asked(framework: str, kinds: Literal["FORMS", "WAYS"]) -> Asked:
    """Keras is there on TensorFlow or on JAX; torch has no use for it."""
    return Asked(MODULES[framework], kinds, "jax" if framework == "jax" else "tensorflow")


def described(found: Found) -> str:
    """What came of a form, in a line."""
    if found.fault:
        return f"WRONG, so it is not timed: {found.fault}"
    if found.missing:
        return f"not run: needs {found.missing}"
    n = max(found.samples)
    median, between = spread(steps(found, n))
    return f"right; {median} ms a step ({between})"
