"""stage=graph: one net in every form of three frameworks, and its step operation by operation, as a graph, compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from pipeline.backends import check_jax_compiles
from pipeline.backends.shared.form_bench import TOLERANCE
from pipeline.backends.shared.two_layer import Net, Reference, Sizes, drawn, trained
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.machine.device import gpu_free_bytes
from pipeline.machine.free_memory import free_bytes
from pipeline.report.table import size as in_bytes
from pipeline.runs import receipt as receipts
from pipeline.runs.beside import with_figures
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages import by_framework
from pipeline.stages.by_framework import ByFramework
from pipeline.stages.cores_had import CoresHad
from pipeline.stages.graph.bench import MODULES, Bench
from pipeline.stages.graph.memory import needed_bytes
from pipeline.stages.graph.processes import Job

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

LEAST_MOVED = 1000 * TOLERANCE  # what weights are added in parts of themselves: less is hardly more than rounding
FORM_STEPS = 100  # in a sample of a form
Count = Annotated[int, Field(gt=0, le=1_000_000)]


@spec
class Graph(ByFramework):
    """`frameworks`: torch, tensorflow, jax, each in its own process. `sizes`: N, D_in, H, D_out of the net.

    `steps`: of the training that each form is compared by. `repetitions`: the numbers of steps that are timed together;
    `rounds`: samples of each. `starts`: processes for the first calls of each way. `cores`: of the CPU (None: those
    that this process may use).
    """

    reads: ClassVar[tuple[str, ...]] = ("device", "seed")
    headline: ClassVar[str] = "largest_difference"

    frameworks: tuple[str, ...] = ("torch", "tensorflow", "jax")
    sizes: tuple[Count, Count, Count, Count] = (64, 1000, 100, 10)
    steps: Count = 500
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-6
    repetitions: tuple[Count, ...] = (1, 10, 100, 1000)
    rounds: Annotated[int, Field(gt=0, le=1000)] = 5
    starts: Annotated[int, Field(gt=0, le=100)] = 1
    cores: PositiveInt | None = None

    def __post_init__(self) -> None:
        by_framework.check_names("frameworks", self.frameworks, by_framework.BACKENDS)
        if self.repetitions == ():
            raise UserError("stage.repetitions=[]: name one at least")
        by_framework.check_cores(self.cores)

    @property
    def user_code(self) -> tuple[str, ...]:
        """The forms, which other processes import by their names."""
        forms = (f"{MODULES[name]}.FORMS" for name in ("numpy", *self.frameworks))
        return ("pipeline.backends.shared.form_process.main", *forms)

    def check(self, experiment: Experiment) -> None:
        """Refuse a framework that is not installed or compiles nothing, and a net beyond memory, before anything is
        allocated."""
        by_framework.check_frameworks(self.frameworks)
        if "jax" in self.frameworks:
            check_jax_compiles("stage=graph compiles the steps of jax_jit and keras_jax")
        by_framework.check_device("graph", experiment.device)
        processes, kept = 1 + len(self.frameworks), len({self.steps, *self._timed})  # NumPy's too
        self._check_memory(processes, kept, free_bytes(), "are free")

    def _check_memory(self, processes: int, kept: int, free: int, where: str) -> None:
        needed = needed_bytes(self.sizes, kept)
        if processes * needed > free:
            sizes = ",".join(map(str, self.sizes))
            raise UserError(
                f"stage.sizes=[{sizes}]: the net needs {in_bytes(needed)} in each of {processes} processes, "
                f"{in_bytes(processes * needed)} in all; {in_bytes(free)} {where}; use smaller ones"
            )

    @property
    def _timed(self) -> tuple[int, ...]:
        """Numbers of steps that are timed together; 1 and 2 are the first calls."""
        return (1, 2, FORM_STEPS, *self.repetitions)

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys of trainings, and name the stage's own in their place."""
        instead = {"backend": "stage.frameworks names them", "precision": "all forms compute in float64"}
        by_framework.check_taken("graph", keys, instead, "the net is the stage's own")

    def needs_less(self) -> str:
        return "use smaller stage.sizes"

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse a net that the GPU has no room for, and by NumPy alone a training that does not stay finite."""
        if resolved.place.kind == "gpu":
            free = gpu_free_bytes(resolved.place.index)
            self._check_memory(len(self.frameworks), 0, free, f"of {resolved.place} are free")
        net, reference = self._reference(experiment.seed)
        wrong = np.flatnonzero(~np.isfinite(reference.losses))
        if wrong.size:
            raise UserError(
                f"stage.learning_rate={self.learning_rate:g}: the loss is not finite from step {wrong[0] + 1} on; "
                "use a smaller one"
            )
        moved = _moved(net, reference, self.steps)
        if moved < LEAST_MOVED:
            raise UserError(
                f"stage.learning_rate={self.learning_rate:g}: moves the weights by {moved:.1e} of their size in "
                f"{self.steps} steps, too little to notice a form that does not train them; use a larger one"
            )

    def _reference(self, seed: int) -> tuple[Net, Reference]:
        return reference_of(self.sizes, self.learning_rate, seed, self.steps, self._timed)

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """All forms first, then all ways, a framework at a time; tables and the figure."""
        from pipeline.stages.graph import figures, tables

        receipt = receipts.before(experiment, resolved)
        receipt["precision"] = {"requested": "fp64", "effective": "fp64", "reason": "all forms compute in float64"}
        run.journal.write_receipt(receipt)
        absent = by_framework.cannot_use(self.frameworks, resolved.place)
        bench = Bench(self._job(experiment.seed, resolved), absent, run)
        by_framework.note_threads(run, bench.job.cores)
        samples, had = run.artifact("tables/samples.csv"), CoresHad(bench.job.cores, pinned=True)
        bench.keep = lambda: tables.write_csv(samples, bench)
        with had.during():
            bench.measure_forms("numpy", *self.frameworks)
            for framework in self.frameworks:
                bench.measure_ways(framework)
        tables.write_csv(samples, bench)
        if others := had.note():
            run.note(others)
        facts = {"cores": bench.job.cores, "cores_had": had.shares, "forms": bench.facts()}
        run.journal.write_receipt(receipt | facts)
        rows, shown = tables.summary(bench), tables.shown(bench)
        result = by_framework.reported(run, tables.metrics(bench), rows, shown, bench.faults())
        result = replace(result, details=(tables.of_dispatch(bench, bench.job.repetitions), tables.of_kinds(bench)))
        return with_figures(result, lambda: figures.draw(run.artifact("figures/crossover.png"), bench))

    def _job(self, seed: int, resolved: Resolved) -> Job:
        net, reference = self._reference(seed)
        return Job(
            net=net,
            reference=reference,
            place=str(resolved.place),
            cores=self.cores or by_framework.core_count(),
            form_steps=FORM_STEPS,
            repetitions=tuple(sorted(set(self.repetitions))),
            rounds=self.rounds,
            starts=self.starts,
        )


@cache
def reference_of(sizes: Sizes, rate: float, seed: int, steps: int, timed: tuple[int, ...]) -> tuple[Net, Reference]:
    """Computed once for the checks and the run."""
    net = drawn(sizes, rate, seed)
    return net, trained(net, steps, timed)


def _moved(net: Net, reference: Reference, steps: int) -> float:
    """The norm of what the training adds to the weights, in parts of theirs."""
    before = (net.w1, net.w2)
    added = (new - old for new, old in zip(reference.weights[steps], before, strict=True))
    return math.hypot(*map(np.linalg.norm, added)) / math.hypot(*map(np.linalg.norm, before))
