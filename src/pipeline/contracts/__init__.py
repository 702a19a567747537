"""The contracts: what the spec of each config group has to offer (`physics.py`: problems, networks and solvers).
A spec derives from its contract.

Abstract methods have to be defined; the rest has a default, and `offers` says whether an optional method was defined.
What a spec lacks is refused when its config is built (`fault`). Frameworks are known to the parts that import them:
their objects are `object` here. All imports are for annotations alone, so that every layer can use the contracts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    import numpy as np

    from pipeline.augmentations.draws import Draws
    from pipeline.datasets import Data
    from pipeline.experiment import Experiment
    from pipeline.machine.capability import Resolved
    from pipeline.machine.device import Gpu, Place
    from pipeline.models import Shapes
    from pipeline.profilers import Tool
    from pipeline.runs.result import Direction, Result
    from pipeline.runs.run import Run
    from pipeline.tasks import Targets, Task


def offers(part: object, method: Callable[..., object]) -> bool:
    """Whether a part defines an optional method of its contract, such as `Problem.hard`."""
    return getattr(type(part), method.__name__) is not method


def defines(part: object, contract: type[Part], name: str) -> bool:
    """The same by the method's name: a backend names its builder."""
    return offers(part, getattr(contract, name))


class Part(ABC):  # noqa: B024  # the contracts below have abstract methods
    """A choice of any config group.

    `packages`: distributions whose versions decide the result, beside the backend's. `locations`: fields that decide
    nothing (where files lie, when checkpoints are written), and stay out of the config's hash. `imports`: modules that
    a run needs late and a grid's worker imports once.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    locations: ClassVar[tuple[str, ...]] = ()
    imports: ClassVar[tuple[str, ...]] = ()
    one_of: ClassVar[tuple[str, ...]] = ()  # optional methods of a contract of which a spec defines one at least

    @property
    def user_code(self) -> tuple[str, ...]:
        """The user's code that it runs, by dotted names: it counts in the code's hash."""
        return ()

    @property
    def user_files(self) -> tuple[Path, ...]:
        """Files and folders that it reads and whose content decides the result."""
        return ()

    @property
    def inside(self) -> tuple[Part, ...]:
        """The parts that it holds: their code, files and packages count as its own."""
        return ()


class Stage(Part):
    """What a command does with an experiment. A stage knows no framework.

    `recorded`: it leaves a run behind (a folder and an MLflow run); one that does not gets no `run`. `starts_from_run`:
    it works on the run that `run=<id>` names, with that run's experiment. `solves`: it trains for a problem, not for a
    dataset. `reads`: the only groups that decide its result (None: all of them). `has_cells`: it runs other experiments
    as its own cells, and its checks try them. `varies_precision`: the cells differ in precision. `headline`: the
    metric that it is judged by. `task`: what the dataset has to be of (None: anything).
    """

    recorded: ClassVar[bool] = True
    starts_from_run: ClassVar[bool] = False
    solves: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...] | None] = None
    has_cells: ClassVar[bool] = False
    varies_precision: ClassVar[bool] = False
    headline: ClassVar[str] = "test/loss"
    task: ClassVar[type[Task] | None] = None

    if TYPE_CHECKING:

        @property
        def probe(self) -> bool:
            """Whether a step is taken apart, so that the backend's probe decides the result too."""
    else:
        probe = False

    @abstractmethod
    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Do it. Raises RunError where it cannot go on."""

    def check(self, experiment: Experiment) -> None:
        """Refuse what can be refused before the run begins. Raises UserError."""

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys that the user has set and the stage would not follow. Raises UserError."""

    def kinds(self, experiment: Experiment) -> list[Experiment]:
        """One experiment of each kind of its cells: their code, packages and configs count as the stage's own."""
        return []

    @property
    def resolved(self) -> Resolved | None:
        """Where it computes whatever the config says; None: as the config says."""
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

    `modules`: what it imports to train; `probe`: to take a step apart.
    """

    name: ClassVar[str]
    builder: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]
    probe: ClassVar[str]

    if TYPE_CHECKING:

        @property
        def threads(self) -> int | None:
            """CPU threads of one operation, where set."""

        @property
        def compile(self) -> bool:
            """Whether the training step is compiled by torch."""

        @property
        def xla(self) -> bool | None:
            """Whether it is compiled by XLA; None: as is best."""
    else:
        threads, compile, xla = None, False, None

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


class Model(Part):
    """A network for a dataset. `layer_dtypes`: a dtype for each layer (None: the precision's), or none at all.

    `shared_start`: its kernels, biases, embeddings and normalizations start from values drawn by the seed, the same on
    every backend (pipeline.models.weights). A model that does not say so starts from the values that it was made with.
    `layout`: "channels_first" for a module that takes images as (N, C, H, W); `shapes` is (H, W, C) all the same.
    """

    shared_start: ClassVar[bool] = False
    layout: ClassVar[Literal["channels_last", "channels_first"]] = "channels_last"

    if TYPE_CHECKING:

        @property
        def layer_dtypes(self) -> Sequence[str | None]: ...
    else:
        layer_dtypes = ()

    one_of: ClassVar[tuple[str, ...]] = ("torch", "keras")

    def torch(self, shapes: Shapes) -> object:
        """A torch.nn.Module from a batch x (N, *shapes.x) to (N, *shapes.outputs)."""
        raise NotImplementedError

    def keras(self, shapes: Shapes) -> object:
        """A keras.Model from a batch x (N, *shapes.x) to (N, *shapes.outputs)."""
        raise NotImplementedError


class Optimizer(Part):
    """A rule by which weights are updated, the same on every backend. `learning_rate`: what a schedule scales.

    `decay`: which weights its weight decay, if any, shrinks: `all`, or `matrices`, which leaves out tensors of one
    dimension (biases, and the scales and shifts of normalizations).
    """

    one_of: ClassVar[tuple[str, ...]] = ("torch", "keras")

    if TYPE_CHECKING:

        @property
        def learning_rate(self) -> float: ...

        @property
        def decay(self) -> str: ...
    else:
        decay = "all"

    @abstractmethod
    def slots(self) -> int:
        """Numbers kept per weight beside the weight and its gradient, for the estimate of memory."""

    def torch(self, parameters: Iterable[object]) -> object:
        """A torch.optim.Optimizer over `parameters`: tensors, or groups of them as dictionaries."""
        raise NotImplementedError

    def keras(self) -> object:
        """A keras.optimizers.Optimizer."""
        raise NotImplementedError


class Schedule(Part):
    """How the learning rate changes over the training. `constant`: it does not."""

    constant: ClassVar[bool] = False

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """What the optimizer's rate is multiplied by at optimizer step `step` (from 0) of `steps`."""

    def longest(self) -> tuple[str, int] | None:
        """The setting that counts steps, and how many: a training must have more of them."""


class Loss(Part):
    """What a training lowers, the same on every backend. `asks_the_data`: only they can tell whether `check` passes."""

    one_of: ClassVar[tuple[str, ...]] = ("torch", "keras")

    if TYPE_CHECKING:

        @property
        def asks_the_data(self) -> bool: ...
    else:
        asks_the_data = False

    @abstractmethod
    def numpy(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """The loss of outputs that are at hand, in float64: it measures the test set."""

    def check(self, task: Task) -> None:
        """Refuse a task that its settings do not fit. Raises UserError."""

    def torch(self) -> Callable[[object, object], object]:
        """(outputs, targets) -> scalar tensor, the mean over their first axis."""
        raise NotImplementedError

    def keras(self) -> Callable[[object, object], object]:
        """(outputs, targets) -> scalar tensor of the Keras backend."""
        raise NotImplementedError


class Metric(Part):
    """How good a model's outputs are on the test set: a number made of sums over its batches.

    `direction`: which value is better. `unit`: of the value; empty where it has none. `name`: what it is called behind
    `test/` (None: as its class). `takes`: what its targets have to be (`Task.targets`); None: anything.
    """

    unit: ClassVar[str] = ""
    takes: ClassVar[Targets | None] = None

    if TYPE_CHECKING:

        @property
        def direction(self) -> Direction: ...

        @property
        def name(self) -> str | None: ...
    else:
        direction: str
        name = None

    @abstractmethod
    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        """Of one batch what adds up over batches: a number, an array, or several of them as a tuple.

        Outputs, in float64, and targets are as the loss takes them (`Task.compared`).
        """

    @abstractmethod
    def value(self, sums: Any) -> float:
        """What the sums over all batches come to."""


class Dataset(Part):
    """Where the data come from. `task`: the type of task that they are of (pipeline.tasks)."""

    task: ClassVar[type[Task]]

    if TYPE_CHECKING:

        @property
        def cache(self) -> str | None:
            """The folder that fetched files are kept in, where set."""
    else:
        cache = None

    @abstractmethod
    def load(self, root: Path, seed: int) -> Data:
        """Read, fetching to `root` first where needed. Raises UserError for data that is missing or damaged."""


class Augmentation(Part):
    """How training images are changed at random, on the host, before they reach the step. `active`: it changes any."""

    if TYPE_CHECKING:

        @property
        def active(self) -> bool: ...
    else:
        active = True

    @abstractmethod
    def augmented(self, x: np.ndarray, draws: Draws) -> np.ndarray:
        """Images x (B, H, W, C), as the dataset stores them, changed: of the same shape and dtype.

        `draws`: all that is random, for each image by itself: `draws.uniform(...)`, `draws.integers(low, high, ...)`.
        """

    def check(self, image: tuple[int, int, int]) -> None:
        """Refuse images of a height, a width and channels that its settings do not fit. Raises UserError."""


class Loader(Part):
    """How batches reach the step. `backends`: those that it feeds. `steps_per_execution`: optimizer steps before Python
    looks at their losses. `augments`: it takes its batches from `data.training`, where images are augmented.
    """

    backends: ClassVar[tuple[str, ...]]
    augments: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def steps_per_execution(self) -> int: ...

        @property
        def pin_memory(self) -> bool:
            """Whether batches lie in page-locked memory, and are copied to a GPU one ahead."""
    else:
        steps_per_execution: int
        pin_memory = False

    def stream(
        self, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int] = (0, 0)
    ) -> Iterable[tuple[Sized, Sized]]:
        """Training batches by `data.inputs` and `data.targets`; the n-th pass over them is the n-th epoch.

        `start`: the epoch of the first pass, and the batch with which that one begins (of a resumed training).
        """
        raise NotImplementedError

    def check_device(self, place: Place) -> None:
        """Refuse a device that it cannot feed as it is set. Raises Impossible."""


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
