"""What runs an experiment: the stage, the framework under it, and what watches and tracks it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from pipeline.contracts.part import Part

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from pipeline.experiment import Experiment
    from pipeline.machine.capability import Resolved
    from pipeline.machine.device import Gpu, Place
    from pipeline.profilers import Tool
    from pipeline.runs.result import Result
    from pipeline.runs.run import Run
    from pipeline.tasks import Task


class Stage(Part):
    """What a command does with an experiment. A stage knows no framework.

    `starts_from_run`: it works on the run that `run=<id>` names, with that run's experiment. `takes_other_data`: with
    other data than that run's, too, where the user names them. `compiles_passes`: backend.compile and backend.xla are
    of the saved model's passes. `solves`: it trains for a
    problem, not for a dataset. `reads`: the only groups that decide its result (None: all of them). `has_cells`: it
    runs other experiments as its own cells, and its checks try them. `varies_precision`: the cells differ in precision.
    `headline`: the metric that it is judged by, and where a run has none of it the first of `otherwise`. `task`: what
    the dataset has to be of (None: anything). `distributes`: its training may be that of several processes. `by`: the
    module of the backend that it works by, beside those that train; it decides its result. `makes`: the rows of its
    result's table that hold what it makes, which a grid shows, and marks no cell as the best (None: its metrics are all
    of it). `seeds_by`: its setting that says how many seeds it trains, from the experiment's upwards (None: that one).
    `folds_by`: its setting that says how many folds it trains (None: no folds).
    `trains_users`: what of the user's it leaves to a framework to train, as `stage.module=mine.Lit`; None: nothing.
    `own_kernels`: it computes by kernels of our own, on any GPU, whether or not a framework can use that.
    """

    starts_from_run: ClassVar[bool] = False
    takes_other_data: ClassVar[bool] = False
    compiles_passes: ClassVar[bool] = False
    solves: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...] | None] = None
    has_cells: ClassVar[bool] = False
    varies_precision: ClassVar[bool] = False
    headline: ClassVar[str] = "test/loss"
    otherwise: ClassVar[tuple[str, ...]] = ()
    distributes: ClassVar[bool] = False
    by: ClassVar[str | None] = None
    makes: ClassVar[str | None] = None
    seeds_by: ClassVar[str | None] = None
    folds_by: ClassVar[str | None] = None
    own_kernels: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def recorded(self) -> bool:
            """Whether it leaves a run behind (a folder and an MLflow run); one that does not gets no `run`."""

        @property
        def probe(self) -> bool:
            """Whether a step is taken apart, so that the backend's probe decides the result too."""

        @property
        def trains_users(self) -> str | None: ...

        @property
        def task(self) -> type[Task] | None: ...
    else:
        recorded, probe, trains_users, task = True, False, None, None

    @abstractmethod
    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Do it. Raises RunError where it cannot go on."""

    def versions(self) -> Mapping[str, str]:
        """Of what decides its result beside packages, such as a compiler of this machine."""
        return {}

    def check(self, experiment: Experiment) -> None:
        """Refuse what can be refused before the run begins. Raises UserError.

        Of a stage that starts from a saved run: by the experiment alone. A study asks before that run is made.
        """

    def check_source(self, experiment: Experiment, source: Path) -> None:
        """Of a stage that starts from a saved run: refuse what only the run in the folder `source` shows, or what an
        earlier run of this stage may have left. Raises UserError."""

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys that the user has set and the stage would not follow. Raises UserError."""

    def kinds(self, experiment: Experiment) -> list[Experiment]:
        """One experiment of each kind of its cells: their code, packages and configs count as the stage's own."""
        return []

    def data_sha256(self, experiment: Experiment) -> str | None:
        """Hash of what it reads in place of the dataset, as its receipt has it; None: it reads the dataset.

        Raises UserError where that cannot be read.
        """
        return None

    def title(self, experiment: Experiment) -> str | None:
        """What a run is called; None: by the model, the dataset, the backend and the precision."""
        return None

    @property
    def resolved(self) -> Resolved | None:
        """Where it computes whatever the config says; None: as the config says."""
        return None

    @property
    def computes_by(self) -> tuple[Backend, ...] | None:
        """The backends that decide on the device, where the stage names its own; None: that of the experiment does."""
        return None

    def rehearse(self, experiment: Experiment, resolved: Resolved) -> None:
        """Refuse what only the data and the framework can tell, in the process that will run it. Raises UserError."""

    def needs_less(self) -> str:
        """What to change where memory ran out, by keys that the stage takes."""
        if self.starts_from_run:  # the saved run's model is fixed
            return "use a smaller training.evaluation_batch_size or precision"
        return f"use a smaller {'dataset.interior' if self.solves else 'training.batch_size'}, model or precision"


class Backend(Part):
    """What trains a model: a framework. `builder`: the method by which it builds models, optimizers and losses.

    `modules`: what it imports to train; `probe`: to take a step apart. `distributes`: it trains in several processes.
    `shards`: one process of it trains on several devices.
    """

    name: ClassVar[str]
    builder: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]
    probe: ClassVar[str]
    distributes: ClassVar[bool] = False
    shards: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def threads(self) -> int | None:
            """CPU threads of one operation, where set."""

        @property
        def compile(self) -> bool:
            """Whether the training step, or a saved model's pass, is compiled by torch."""

        @property
        def xla(self) -> bool | None:
            """Whether it is compiled by XLA; None: as is best."""
    else:
        threads, compile, xla = None, False, None

    def module(self, name: str) -> str:
        """The full name of one of its builder's modules."""
        return f"pipeline.backends.{self.builder}.{name}"

    @abstractmethod
    def load(self) -> ModuleType:
        """Import it: a module with `fit` and `predictor` (see pipeline.backends)."""

    @abstractmethod
    def no_gpu_because(self, gpu: Gpu | None = None) -> str | None:
        """Why this installation cannot use `gpu` (None: any GPU at all), read off its files; None where it can."""

    def check_device(self, place: Place) -> None:
        """Refuse a device that it cannot work on as it is set. Raises Impossible."""

    def unused_by_solvers(self) -> tuple[str, ...]:
        """The settings, as `backend.compile=true`, that a solver would not follow."""
        return ()


class Profiler(Part):
    """What watches a training. `active`: it does. `backends`: those that it knows; `instead` ends another's message.

    `wraps_command`: it reruns the whole command. `skip`: optimizer steps before the window; `steps`: those in it (0:
    there is none).
    """

    active: ClassVar[bool] = True
    backends: ClassVar[tuple[str, ...]]
    instead: ClassVar[str] = ""
    wraps_command: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def skip(self) -> int: ...

        @property
        def steps(self) -> int: ...
    else:
        skip: int
        steps: int

    @abstractmethod
    def tool(self, experiment: Experiment, run: Run) -> Tool | None:
        """What does the work in one fit; None where there is none to do."""

    def check_device(self, place: Place, backend: str) -> None:
        """Refuse a device, before any framework is imported. Raises UserError."""

    def rerun(self) -> int | None:
        """Of one that wraps a command: run it again, wrapped, and return its exit status; None where it is wrapped."""
        return None


class Tracking(Part):
    """Where a run is tracked. `wait`: seconds that a finished run waits for it."""

    if TYPE_CHECKING:

        @property
        def wait(self) -> float: ...
    else:
        wait = 0.0


class GridMember(Protocol):
    """A cell's tie to the grid that started it. `grid`: the folder of the grid's own run."""

    grid: str

    def began(self, run: Run) -> None:
        """Note which run the cell has become."""
        ...

    def interrupted(self) -> str | None:
        """Why the grid stops its cells, where a signal has stopped it; None where none has."""
        ...
