"""stage=graph: one net in every form of three frameworks, and its step operation by operation, as a graph, compiled."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from pipeline import backends
from pipeline.backends.shared.two_layer import Net, Reference, Sizes, drawn, trained
from pipeline.contracts import Backend, Part, Stage
from pipeline.errors import Impossible, UserError, bad_choice
from pipeline.machine.capability import Resolved
from pipeline.machine.device import gpus
from pipeline.machine.installed import check_installed
from pipeline.runs import receipt as receipts
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import group_of, spec
from pipeline.stages.graph.bench import MODULES, Bench
from pipeline.stages.graph.processes import Job

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

TAKES = ("stage", "device", "seed", "tracking", "name", "output_dir", "hydra", "sweep", "experiment")
BACKENDS: dict[str, type[Backend]] = {"torch": backends.Torch, "tensorflow": backends.TensorFlow, "jax": backends.Jax}
FORM_STEPS = 100  # in a sample of a form
Count = Annotated[int, Field(gt=0, le=1_000_000)]


@spec
class Graph(Stage):
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
    rounds: Annotated[int, Field(gt=0, le=1000)] = 3
    starts: Annotated[int, Field(gt=0, le=100)] = 1
    cores: PositiveInt | None = None

    def __post_init__(self) -> None:
        for name, value in (("frameworks", self.frameworks), ("repetitions", self.repetitions)):
            if value == ():
                raise UserError(f"stage.{name}=[]: name one at least")
        for framework in self.frameworks:
            if framework not in BACKENDS:
                raise bad_choice("stage.frameworks", framework, BACKENDS)
            if self.frameworks.count(framework) > 1:
                raise UserError(f"stage.frameworks=[{','.join(self.frameworks)}]: {framework} is named twice")
        allowed = len(os.sched_getaffinity(0))
        if self.cores is not None and self.cores > allowed:
            raise UserError(f"stage.cores={self.cores}: this process may use {allowed}")

    @property
    def title(self) -> str:
        return "graph"

    @property
    def inside(self) -> tuple[Part, ...]:
        """The backends, whose packages the forms need."""
        return tuple(BACKENDS[name]() for name in self.frameworks)

    @property
    def user_code(self) -> tuple[str, ...]:
        """The forms, which other processes import by their names."""
        forms = (f"{MODULES[name]}.FORMS" for name in ("numpy", *self.frameworks))
        return ("pipeline.backends.shared.form_process.main", *forms)

    def check(self, experiment: Experiment) -> None:
        """Refuse a framework that is not installed."""
        for name in self.frameworks:
            try:
                check_installed({f"stage.frameworks={name}": BACKENDS[name].packages})
            except Impossible as error:
                others = [one for one in self.frameworks if one != name]
                without = f"; or leave it out: stage.frameworks=[{','.join(others)}]" if others else ""
                raise Impossible(f"{error}{without}") from error

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys of trainings, and name the stage's own in their place."""
        instead = {"backend": "stage.frameworks names them", "precision": "all forms compute in float64"}
        for key in keys:
            group = group_of(key)
            if group not in TAKES:
                why = instead.get(group, "the net is the stage's own")
                raise UserError(f"{key} with stage=graph: {why}; leave it out")

    def needs_less(self) -> str:
        return "use smaller stage.sizes"

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse a training that does not stay finite, or has nothing to compare, by NumPy alone."""
        _, reference = self._reference(experiment.seed)
        wrong = np.flatnonzero(~np.isfinite(reference.losses))
        if wrong.size:
            raise UserError(
                f"stage.learning_rate={self.learning_rate:g}: the loss is not finite from step {wrong[0] + 1} on; "
                "use a smaller one"
            )

    def _reference(self, seed: int) -> tuple[Net, Reference]:
        timed = (1, 2, FORM_STEPS, *self.repetitions)  # 1 and 2: the first calls
        return reference_of(self.sizes, self.learning_rate, seed, self.steps, timed)

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """All forms first, then all ways, a framework at a time; tables and the figure."""
        from pipeline.stages.graph import figures, tables

        receipt = receipts.before(experiment, resolved)
        receipt["precision"] = {"requested": "fp64", "effective": "fp64", "reason": "all forms compute in float64"}
        run.journal.write_receipt(receipt)
        bench = Bench(self._job(experiment.seed, resolved), self._absent(resolved), run)
        samples = run.artifact("tables/samples.csv")
        bench.measure_forms("numpy", *self.frameworks)
        tables.write_csv(samples, bench)  # what an interrupted run leaves
        for framework in self.frameworks:
            bench.measure_ways(framework)
        tables.write_csv(samples, bench)
        run.journal.write_receipt(receipt | {"cores": bench.job.cores, "forms": bench.facts()})
        figures.draw(run.artifact("figures/crossover.png"), bench.ways)
        return Result(
            metrics=tuple(tables.metrics(bench)),
            tables=tables.shown(bench),
            details=(tables.of_dispatch(bench, bench.job.repetitions), tables.of_kinds(bench)),
            table=tuple(tables.summary(bench)),
            failed="; ".join(bench.faults()) or None,
        )

    def _job(self, seed: int, resolved: Resolved) -> Job:
        net, reference = self._reference(seed)
        return Job(
            net=net,
            reference=reference,
            place=str(resolved.place),
            cores=self.cores or len(os.sched_getaffinity(0)),
            form_steps=FORM_STEPS,
            repetitions=tuple(sorted(set(self.repetitions))),
            rounds=self.rounds,
            starts=self.starts,
        )

    def _absent(self, resolved: Resolved) -> dict[str, str]:
        """The frameworks that cannot use the device as they are installed, and why."""
        if resolved.place.kind == "cpu":
            return {}
        gpu = gpus()[resolved.place.index]
        because = {name: BACKENDS[name]().no_gpu_because(gpu) for name in self.frameworks}
        return {name: f"not run: {why}" for name, why in because.items() if why}


@cache
def reference_of(sizes: Sizes, rate: float, seed: int, steps: int, timed: tuple[int, ...]) -> tuple[Net, Reference]:
    """Computed once for the checks and the run."""
    net = drawn(sizes, rate, seed)
    return net, trained(net, steps, timed)
