"""stage=loading: settings of data loaders compared on images from memory, from files and from a mapped file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, PositiveInt

from pipeline.backends.shared.load_settings import Asked
from pipeline.datasets import Data
from pipeline.datasets.loading import load_ahead, load_data
from pipeline.errors import UserError
from pipeline.experiment.effects import of_workers
from pipeline.machine.cache_folder import cache_root
from pipeline.machine.capability import Resolved
from pipeline.machine.device import gpus
from pipeline.machine.own_process import LONG
from pipeline.runs import receipt as receipts
from pipeline.runs.beside import with_figures
from pipeline.runs.result import Result
from pipeline.runs.run import Run
from pipeline.spec import choice, spec
from pipeline.stages import by_framework
from pipeline.stages.by_framework import ByFramework
from pipeline.stages.cores_had import CoresHad
from pipeline.stages.data_checks import check_task
from pipeline.stages.loading.bench import MODULES, Bench, Job
from pipeline.stages.loading.sources import is_picture, stored

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.tasks import Task

FRAMEWORKS = ("torch", "tensorflow")
SOURCES = ("memory", "files", "mapped")
MEGA = 10**6
# Of a pass, where the dataset has so many: from memory it is quick, and its beginning should not count for much.
EXAMPLES = {"memory": 4096, "files": 1024, "mapped": 1024}
Count = Annotated[int, Field(gt=0, le=1_000_000)]
Workers = Annotated[int, Field(ge=0, le=1024)]
Ahead = Annotated[int, Field(ge=0, le=1_000_000)]
Seconds = Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)]


@spec
class Loading(ByFramework):
    """`frameworks`: torch, tensorflow. `sources`: memory, files, mapped. Each pair has its own process.

    `batch_sizes`: the first is that of the plainest setting. `workers`: processes of torch's DataLoader, calls at once
    of tf.data's map. `prefetch`: batches made ahead. `pinned`, `cache`, `resident`: tried too. `every`: all
    combinations, not one change at a time. `examples`: of a pass (None: EXAMPLES, or as many as there are).
    `mapped_mb`: least size of the mapped file. `rounds`: samples of each setting; `finals`: of the best ones and
    the plainest; `seconds`: least time of one, in whole passes. `step_ms`: of a training's step of 128 images.
    `cores`: of the CPU (None: those that this process may use).
    """

    reads: ClassVar[tuple[str, ...]] = ("dataset", "device", "seed")
    headline: ClassVar[str] = "best_rate"

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

    @property
    def task(self) -> type[Task]:
        from pipeline.tasks.classification import Classification

        return Classification

    def __post_init__(self) -> None:
        by_framework.check_names("frameworks", self.frameworks, FRAMEWORKS)
        by_framework.check_names("sources", self.sources, SOURCES)
        if self.batch_sizes == ():
            raise UserError("stage.batch_sizes=[]: name one at least")
        by_framework.check_cores(self.cores)

    @property
    def user_code(self) -> tuple[str, ...]:
        """What other processes import by its name."""
        return ("pipeline.backends.shared.load_process.main", *(f"{MODULES[name]}.Feed" for name in self.frameworks))

    def check(self, experiment: Experiment) -> None:
        """Refuse a framework that is not installed, and samples for which a process has no time."""
        by_framework.check_frameworks(self.frameworks)
        by_framework.check_device("loading", experiment.device)
        for source in self.sources:
            for framework in self.frameworks if source != "mapped" else ():  # of which a sample is a pass
                settings = len(self._asked(on_gpu=False).of(framework, source).varied())
                samples = settings * self.rounds + self.finals
                if samples * self.seconds > LONG:
                    raise UserError(
                        f"stage.seconds={self.seconds:g}: {framework} takes {samples:,} samples of that from {source}, "
                        f"and a process is ended after {LONG:,.0f} s; "
                        f"choose up to {int(LONG / samples * 1000) / 1000:g}, or fewer stage.rounds"
                    )

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys of trainings, and name the stage's own in their place."""
        instead = {
            "backend": "stage.frameworks names them",
            "loader": "stage.workers, stage.prefetch, stage.cache and others say what is varied",
            "precision": "batches are float32",
        }
        by_framework.check_taken("loading", keys, instead, "nothing is trained", also=("dataset",))
        if "stage.prefetch" in keys and self.frameworks == ("torch",) and not any(self.workers):
            raise UserError("stage.prefetch: torch's loader makes batches ahead in workers only; add to stage.workers")

    def needs_less(self) -> str:
        return "use fewer stage.examples or smaller stage.batch_sizes"

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse examples that do not suit the settings, and a dataset that is damaged."""
        data = load_ahead(experiment)
        check_task(experiment, data, self.task)
        examples = min(self.examples_of(data, source) for source in self.sources)
        if examples > len(data.train):
            raise UserError(f"stage.examples={examples}: there are {len(data.train):,} training examples")
        if examples < 2:
            raise UserError(f"stage.examples={examples}: a pass needs two batches at least; choose 2 or more")
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
        """How many examples a pass over a source takes."""
        return self.examples or min(EXAMPLES[source], len(data.train))

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Source by source, framework by framework; then the limit, tables and the figure."""
        from pipeline.stages.loading import figures, tables

        receipt = receipts.before(experiment, resolved)
        receipt["precision"] = {"requested": "fp32", "effective": "fp32", "reason": "batches are float32"}
        run.journal.write_receipt(receipt)
        data = load_data(experiment)
        absent = by_framework.cannot_use(self.frameworks, resolved.place)
        bench = Bench(self._job(experiment.seed, resolved, data), absent, run)
        samples, root = run.artifact("tables/samples.csv"), cache_root(experiment.data_source.cache)
        # All of them before the first is measured: a full disk or a damaged file should not cost what was found.
        made = [stored(name, data, self.examples_of(data, name), self.mapped_mb * MEGA, root) for name in self.sources]
        by_framework.note_threads(run, bench.job.cores)
        if "torch" in self.frameworks:
            for said in of_workers("stage.workers", max(self.workers, default=0), bench.job.cores):
                run.note(said)
        had = CoresHad(bench.job.cores, pinned=True)
        with had.during():
            for source in made:
                for framework in self.frameworks:
                    bench.measure(source, framework)
                    tables.write_csv(samples, bench)  # what an interrupted run leaves
            bench.measure_limit()
        if others := had.note():
            run.note(others)
        cores = {"cores": bench.job.cores, "cores_had": had.shares}
        facts = {"data_sha256": data.sha256, **cores, "loaders": bench.facts()}
        run.journal.write_receipt(receipt | facts)
        rows = tables.summary(bench, self._not_measured(resolved))
        result = by_framework.reported(run, tables.metrics(bench), rows, tables.shown(bench), bench.faults())
        return with_figures(result, lambda: figures.draw(run.artifact("figures/loading.png"), bench))

    def _asked(self, *, on_gpu: bool) -> Asked:
        return Asked(
            batch_sizes=self.batch_sizes,
            workers=self.workers,
            prefetch=self.prefetch,
            pinned=self.pinned,
            cache=self.cache,
            resident=self.resident,
            every=self.every,
            on_gpu=on_gpu,
        )

    def _job(self, seed: int, resolved: Resolved, data: Data) -> Job:
        return Job(
            data=data,
            asked=self._asked(on_gpu=resolved.place.kind == "gpu"),
            seed=seed,
            rounds=self.rounds,
            finals=self.finals,
            seconds=self.seconds,
            step_s=self.step_ms / 1000,
            place=str(resolved.place),
            cores=self.cores or by_framework.core_count(),
        )

    def _not_measured(self, resolved: Resolved) -> list[tuple[str, str]]:
        """What cannot be shown without a GPU."""
        if resolved.place.kind == "gpu":
            return []
        return [("copies to a GPU, pinned or not", f"not measured: {'device=cpu' if gpus() else 'no GPU'}")]
