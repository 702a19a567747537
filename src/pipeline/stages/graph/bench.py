"""The bench of stage=graph: each framework's forms, then its ways, and what went wrong on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

from pipeline.backends.shared.form_bench import Found
from pipeline.machine.blas import SPINS_S
from pipeline.runs.run import Run
from pipeline.stages.graph.amortised import spread, steps
from pipeline.stages.graph.processes import (
    PAUSE_S,
    Asked,
    FormProcess,
    Job,
    Saved,
    form_process,
    in_turns,
    read,
    reading,
)

MODULES = {
    "numpy": "pipeline.backends.shared.two_layer_numpy",
    "torch": "pipeline.backends.torch.two_layer",
    "tensorflow": "pipeline.backends.keras.two_layer_tensorflow",
    "jax": "pipeline.backends.keras.two_layer_jax",
}


class Bench:
    """What was found, as it is found. `absent`: the frameworks that cannot use the device, and why.

    `listed`: the ways of each framework, before they are run; `ways`: after. `saved`: by the way whose graph it is.
    `ended`: frameworks, and ways, whose process did not end well; what it had found before is kept.
    `keep`: called after each round, in which `timed` are the processes, so that an interrupted run leaves its samples.
    """

    def __init__(self, job: Job, absent: Mapping[str, str], run: Run) -> None:
        self.job, self.absent, self.run = job, absent, run
        self.forms: list[Found] = []
        self.listed: dict[str, list[Found]] = {}
        self.ways: dict[str, list[Found]] = {}
        self.saved: dict[str, Saved] = {}
        self.ended: dict[str, str] = {}
        self.timed: list[FormProcess] = []
        self.keep: Callable[[], None] = lambda: None

    @property
    def every(self) -> list[Found]:
        """The forms, then the ways, then what is being timed."""
        timed = [one for process in self.timed for one in process.found]
        return [*self.forms, *(one for found in self.ways.values() for one in found), *timed]

    def measure_forms(self, *frameworks: str) -> None:
        """Verify the forms of each framework, time all in turns, and say of each what it is."""
        with ExitStack() as stack:
            started = {
                framework: stack.enter_context(form_process(self._job(framework), asked(framework)))
                for framework in frameworks
                if framework not in self.absent
            }
            self.run.say(f"the forms of {', '.join(started)}: verified, then timed in turns")
            for framework, process in started.items():
                listed = process.listed()
                self.listed[framework] = listed["WAYS"]
                process.obey(do="verify", names=[one.name for one in listed["FORMS"]])
            self._time(started.values(), self.job.form_steps)
        for framework, process in started.items():
            found = [one for one in process.found if one.samples or one.fault or one.missing]  # before it ended, too
            self.forms += found
            self._say(found)
            if process.ended is not None:
                self._end(framework, process.ended)

    def measure_ways(self, framework: str) -> None:
        """Each way in its own process: its first two calls, then as a form; and its graph, saved and run."""
        if framework in self.absent or framework in self.ended:
            return
        found = {one.name: one for one in self.listed[framework]}
        self.run.say(f"{framework}: ways to run the step, each in new processes")
        with ExitStack() as stack:
            started = {
                name: stack.enter_context(form_process(self.job, asked(framework)))
                for name, one in found.items()
                if one.missing is None
            }
            for process in started.values():
                process.listed()
            for name, process in started.items():
                process.obey(do="begin", name=name)
            for name, process in started.items():
                process.obey(do="verify", names=[name])
            for n in self.job.repetitions:
                self._time(started.values(), n)
            found |= {name: _saved(found[name], process) for name, process in started.items()}
            self._read(framework, found, started)
        self.ways[framework] = list(found.values())
        for name, process in started.items():
            if process.ended is not None:
                self._end(name, process.ended)
        self._start_again(framework)
        self._say(self.ways[framework])

    def _time(self, processes: Iterable[FormProcess], steps: int) -> None:
        """Time so many steps of each process in turns."""
        self.timed = list(processes)
        for _ in in_turns(self.timed, steps, self.job.rounds):
            self.keep()
        self.timed = []

    def _read(self, framework: str, found: Mapping[str, Found], started: Mapping[str, FormProcess]) -> None:
        """Run the graphs that could be saved, side by side."""
        folders = {name: process.folder for name, process in started.items() if found[name].saved_as}
        with ExitStack() as stack:
            readers = {
                name: stack.enter_context(reading(self.job, asked(framework), found[name], folder))
                for name, folder in folders.items()
            }
            for name, reader in readers.items():
                self.saved[name] = read(self.job, found[name], folders[name], reader)

    def _start_again(self, framework: str) -> None:
        """More first calls, each in a new process."""
        for _ in range(self.job.starts - 1):
            for one in self.ways[framework]:
                if not one.samples:
                    continue
                with form_process(self.job, asked(framework)) as process:
                    process.listed()
                    process.obey(do="begin", name=one.name)
                if process.ended is not None:
                    self._end(one.name, process.ended)
                elif process.found[0].fault:
                    fault = f"its first calls: {process.found[0].fault}"
                    one.fault, one.samples, one.first, one.second = fault, {}, [], []
                else:
                    one.first += process.found[0].first
                    one.second += process.found[0].second

    def _job(self, framework: str) -> Job:
        return replace(self.job, place="cpu") if framework == "numpy" else self.job

    def _say(self, found: list[Found]) -> None:
        for one in found:
            if one.samples or one.fault or one.missing:
                self.run.say(f"{one.name}: {described(one)}")

    def _end(self, name: str, why: str) -> None:
        self.ended[name] = why
        self.run.say(f"{name}: {why}")

    def faults(self) -> Iterator[str]:
        """What went wrong, by which the run is FAILED."""
        for name, why in self.ended.items():
            yield f"{name}: {why}"
        for one in self.every:
            if one.fault:
                yield f"not timed, because wrong: {one.name}: {one.fault}"
            if one.unsaved:
                yield f"{one.name} could not be saved: {one.unsaved}"
        for name, saved in self.saved.items():
            if saved.fault:
                yield f"{name}, saved and run without this package: {saved.fault}"

    def facts(self) -> list[dict[str, object]]:
        """For the receipt: what was observed of each form and way."""
        return [
            {name: value for name, value in one.plain().items() if name != "samples" and value is not None}
            for one in self.every
        ]


def asked(framework: str) -> Asked:
    """Keras is there on TensorFlow or on JAX; torch has no use for it."""
    rest_s = SPINS_S if framework == "numpy" else PAUSE_S
    return Asked(MODULES[framework], "jax" if framework == "jax" else "tensorflow", rest_s)


def _saved(listed: Found, process: FormProcess) -> Found:
    """What was found of a way in the end, or before its process ended."""
    (timed,) = process.found or [listed]
    if process.ended is not None:
        return timed
    process.obey(do="save", folder=str(process.folder / "saved"))
    (found,) = process.found
    return found


def described(found: Found) -> str:
    """What came of measuring a form, in a line."""
    if found.fault:
        return f"WRONG, so it is not timed: {found.fault}"
    if found.missing:
        return f"not run: needs {found.missing}"
    n = max(found.samples)
    median, between = spread(steps(found, n))
    return f"right; {median} ms a step ({between})"
