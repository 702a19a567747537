"""stage=loading: settings of data loaders compared on images from memory, from files and from a mapped file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, PositiveInt

from pipeline import backends
from pipeline.backends.shared.load_settings import Asked
from pipeline.contracts import Backend, Part, Stage
from pipeline.datasets import Data
from pipeline.datasets.fetch import cache_root
from pipeline.datasets.loading import load_ahead, load_data
from pipeline.errors import Impossible, UserError, bad_choice
from pipeline.machine.capability import Resolved
from pipeline.machine.device import gpus
from pipeline.machine.installed import check_installed
from pipeline.runs import receipt as receipts
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import choice, group_of, spec
from pipeline.stages.data_checks import check_task
from pipeline.stages.loading.bench import MODULES, Bench, Job
from pipeline.stages.loading.sources import is_picture, stored
from pipeline.tasks import Task
from pipeline.tasks.classification import Classification

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

TAKES = ("stage", "dataset", "device", "seed", "tracking", "name", "output_dir", "hydra", "sweep", "experiment")
BACKENDS: dict[str, type[Backend]] = {"torch": backends.Torch, "tensorflow": backends.TensorFlow}
SOURCES = ("memory", "files", "mapped")
MEGA = 10**6
# Of a pass, where the dataset has so many: from memory it is quick, and its beginning should not count for much.
EXAMPLES = {"memory": 4096, "files": 1024, "mapped": 1024}
Count = Annotated[int, Field(gt=0, le=1_000_000)]
Workers = Annotated[int, Field(ge=0, le=1024)]
Ahead = Annotated[int, Field(ge=0, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)]


@spec
class Loading(Stage):
    """`frameworks`: torch, tensorflow. `sources`: memory, files, mapped. Each pair has its own process.

    `batch_sizes`: the first is that of the plainest setting. `workers`: processes of torch's DataLoader, calls at once
    of tf.data's map. `prefetch`: batches made ahead. `pinned`, `cache`, `resident`: tried too. `every`: all
    combinations, not one change at a time. `examples`: of a pass (None: EXAMPLES, or as many as there are).
    `mapped_mb`: what the mapped file has at least. `rounds`: samples of each setting; `finals`: of the best ones and
    the plainest; `seconds`: that one lasts at least, in whole passes. `step_ms`: of a training's step of 128 images.
    `cores`: of the CPU (None: those that this process may use).
    """

    reads: ClassVar[tuple[str, ...]] = ("dataset", "device", "seed")
    headline: ClassVar[str] = "best_rate"
    task: ClassVar[type[Task] | None] = Classification

    frameworks: tuple[str, ...] = ("torch", "tensorflow")
    sources: tuple[str, ...] = SOURCES
    batch_sizes: tuple[Count, ...] = (128, 256)
    workers: tuple[Workers, ...] = (0, 1, 2)
    prefetch: tuple[Ahead, ...] = (8,)
    pinned: bool = True
    cache: bool = True
    resident: bool = True
    every: bool = False
    examples: Count | None = None
    mapped_mb: Annotated[int, Field(gt=0, le=10**7)] = 64
    rounds: Annotated[int, Field(gt=0, le=1000)] = 3
    finals: Annotated[int, Field(gt=0, le=1000)] = 5
    seconds: Seconds = 0.1
    step_ms: Annotated[float, Field(gt=0, le=60_000, allow_inf_nan=False)] = 3.0
    cores: PositiveInt | None = None

    def __post_init__(self) -> None:
        for name, choices in (("frameworks", list(BACKENDS)), ("sources", SOURCES)):
            values: tuple[str, ...] = getattr(self, name)
            for value in values:
                if value not in choices:
                    raise bad_choice(f"stage.{name}", value, choices)
                if values.count(value) > 1:
                    raise UserError(f"stage.{name}=[{','.join(values)}]: {value} is named twice")
        for name in ("frameworks", "sources", "batch_sizes"):
            if getattr(self, name) == ():
                raise UserError(f"stage.{name}=[]: name one at least")
        allowed = len(os.sched_getaffinity(0))
        if self.cores is not None and self.cores > allowed:
            raise UserError(f"stage.cores={self.cores}: this process may use {allowed}")

    @property
    def title(self) -> str:
        return "loading"

    @property
    def inside(self) -> tuple[Part, ...]:
        """The backends, whose packages the loaders need."""
        return tuple(BACKENDS[name]() for name in self.frameworks)

    @property
    def user_code(self) -> tuple[str, ...]:
        """What other processes import by its name."""
        return ("pipeline.backends.shared.load_process.main", *(f"{MODULES[name]}.Feed" for name in self.frameworks))

    def check(self, experiment: Experiment) -> None:
        """Refuse a framework that is not installed."""
        for name in self.frameworks:
            try:
                check_installed({f"stage.frameworks={name}": BACKENDS[name].packages})
            except Impossible as error:
                others = [one for one in self.frameworks if one != name]
                without = f"; or leave it out: stage.frameworks=[{','.join(others)}]" if others else ""
                raise Impossible(f"{error}{without}") from error
        limit = experiment.device.memory_limit
        if limit is not None:
            raise UserError(f"device.memory_limit={limit} with stage=loading: no loader is bound by it; leave it out")

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys of trainings, and name the stage's own in their place."""
        instead = {
            "backend": "stage.frameworks names them",
            "loader": "stage.workers, stage.prefetch, stage.cache and others say what is varied",
            "precision": "batches are float32",
        }
        for key in keys:
            group = group_of(key)
            if group not in TAKES:
                raise UserError(f"{key} with stage=loading: {instead.get(group, 'nothing is trained')}; leave it out")

    def needs_less(self) -> str:
        return "use fewer stage.examples or smaller stage.batch_sizes"

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse examples that do not suit the settings, and a dataset that is damaged."""
        data = load_ahead(experiment)
        check_task(experiment, data, self.task)
        examples = min(self.examples_of(data, source) for source in self.sources)
        if examples > len(data.train):
            raise UserError(f"stage.examples={examples}: there are {len(data.train):,} training examples")
        for size in self.batch_sizes:
            if size > examples // 2:
                raise UserError(
                    f"stage.batch_sizes={size}: a pass of {examples:,} examples needs two batches at least; "
                    f"choose 1 to {examples // 2}"
                )
        if "files" in self.sources and not is_picture(data):
            x = data.train.x
            raise UserError(
                f"stage.sources=files with dataset={choice(experiment.dataset)}: a PNG holds images of bytes, grey or "
                f"in colours, and an example is {x.shape[1:]} {x.dtype}; leave files out"
            )

    def examples_of(self, data: Data, source: str) -> int:
        """Of a pass."""
        return self.examples or min(EXAMPLES[source], len(data.train))

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Source by source, framework by framework; then the limit, tables and the figure."""
        from pipeline.stages.loading import figures, tables

        receipt = receipts.before(experiment, resolved)
        receipt["precision"] = {"requested": "fp32", "effective": "fp32", "reason": "batches are float32"}
        run.journal.write_receipt(receipt)
        data = load_data(experiment)
        bench = Bench(self._job(experiment.seed, resolved, data), self._absent(resolved), run)
        samples, root = run.artifact("tables/samples.csv"), cache_root(experiment.data_source.cache)
        # All of them before the first is measured: a full disk or a damaged file should not cost what was found.
        made = [stored(name, data, self.examples_of(data, name), self.mapped_mb * MEGA, root) for name in self.sources]
        for source in made:
            for framework in self.frameworks:
                bench.measure(source, framework)
                tables.write_csv(samples, bench)  # what an interrupted run leaves
        bench.measure_limit()
        facts = {"data_sha256": data.sha256, "cores": bench.job.cores, "loaders": bench.facts()}
        run.journal.write_receipt(receipt | facts)
        figures.draw(run.artifact("figures/loading.png"), bench)
        return Result(
            metrics=tuple(tables.metrics(bench)),
            tables=tables.shown(bench),
            table=tuple(tables.summary(bench, self._not_measured(resolved))),
            failed="; ".join(bench.faults()) or None,
        )

    def _job(self, seed: int, resolved: Resolved, data: Data) -> Job:
        asked = Asked(
            batch_sizes=self.batch_sizes,
            workers=self.workers,
            prefetch=self.prefetch,
            pinned=self.pinned,
            cache=self.cache,
            resident=self.resident,
            every=self.every,
            on_gpu=resolved.place.kind == "gpu",
        )
        return Job(
            data=data,
            asked=asked,
            seed=seed,
            rounds=self.rounds,
            finals=self.finals,
            seconds=self.seconds,
            step_s=self.step_ms / 1000,
            place=str(resolved.place),
            cores=self.cores or len(os.sched_getaffinity(0)),
        )

    def _not_measured(self, resolved: Resolved) -> list[tuple[str, str]]:
        """What a machine without a GPU cannot show."""
        if resolved.place.kind == "gpu":
            return []
        return [("copies to a GPU, pinned or not", "not measured: no GPU")]

    def _absent(self, resolved: Resolved) -> dict[str, str]:
        """The frameworks that cannot use the device as they are installed, and why."""
        if resolved.place.kind == "cpu":
            return {}
        gpu = gpus()[resolved.place.index]
        because = {name: BACKENDS[name]().no_gpu_because(gpu) for name in self.frameworks}
        return {name: f"not run: {why}" for name, why in because.items() if why}
