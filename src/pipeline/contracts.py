"""The contracts: what the spec of each config group has to offer, in one place. A spec derives from its contract.

Abstract methods have to be defined; the rest has a default, and `offers` says whether an optional method was defined.
What a spec lacks is refused when its config is built (`fault`). Frameworks are known to the parts that import them:
their objects are `object` here. All imports are for annotations alone, so that every layer can use the contracts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    import numpy as np

    from pipeline.datasets import Data
    from pipeline.experiment import Experiment
    from pipeline.machine.capability import Resolved
    from pipeline.machine.device import Gpu, Place
    from pipeline.models import Shapes
    from pipeline.pinn.corner import Corner
    from pipeline.pinn.domain import Domain
    from pipeline.pinn.problem import Column, Condition, Field, Math
    from pipeline.pinn.solution import Solution
    from pipeline.profilers import Tool
    from pipeline.runs.result import Result
    from pipeline.runs.run import Run
    from pipeline.tasks import Task


def offers(part: object, method: Callable[..., object]) -> bool:
    """Whether a part defines an optional method of its contract, such as `Problem.hard`."""
    return getattr(type(part), method.__name__) is not method


def defines(part: object, contract: type[Part], name: str) -> bool:
    """The same by the method's name: a backend names its builder."""
    return offers(part, getattr(contract, name))


class Part(ABC):  # noqa: B024  # the contracts below have abstract methods
    """A choice of any config group.

    `packages`: distributions whose versions decide the result, beside the backend's. `locations`: fields that only say
    where files lie, and stay out of the config's hash. `imports`: modules that a run needs late and a grid's worker
    imports once.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    locations: ClassVar[tuple[str, ...]] = ()
    imports: ClassVar[tuple[str, ...]] = ()
    one_of: ClassVar[tuple[str, ...]] = ()  # optional methods of a contract of which a spec defines one at least


class Stage(Part):
    """What a command does with an experiment. A stage knows no framework.

    `recorded`: it leaves a run behind (a folder and an MLflow run); one that does not gets no `run`. `starts_from_run`:
    it works on the run that `run=<id>` names, with that run's experiment. `solves`: it trains for a problem, not for a
    dataset. `reads`: the only groups that decide its result (None: all of them). `has_cells`: it runs other experiments
    as cells of its own, and its checks try them. `varies_precision`: the cells differ in precision. `headline`: the
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

    def check_place(self, place: Place) -> None:
        """Refuse a device that it cannot work on as it is set. Raises Impossible."""

    def unused_by_solvers(self) -> tuple[str, ...]:
        """The settings, as `backend.compile=true`, that a solver would not follow."""
        return ()


class Model(Part):
    """A network for a dataset. `layer_dtypes`: a dtype for each layer (None: the precision's), or none at all."""

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
    """A rule by which weights are updated, the same on every backend."""

    one_of: ClassVar[tuple[str, ...]] = ("torch", "keras")

    @abstractmethod
    def slots(self) -> int:
        """Numbers kept per weight beside the weight and its gradient, for the estimate of memory."""

    def torch(self, parameters: Iterable[object]) -> object:
        """A torch.optim.Optimizer over `parameters`."""
        raise NotImplementedError

    def keras(self) -> object:
        """A keras.optimizers.Optimizer."""
        raise NotImplementedError


class Loss(Part):
    """What a training lowers, the same on every backend."""

    one_of: ClassVar[tuple[str, ...]] = ("torch", "keras")

    @abstractmethod
    def numpy(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """The loss of outputs that are at hand, in float64: it measures the test set."""

    def torch(self) -> Callable[[object, object], object]:
        """(outputs, targets) -> scalar tensor, the mean over their first axis."""
        raise NotImplementedError

    def keras(self) -> Callable[[object, object], object]:
        """(outputs, targets) -> scalar tensor of the Keras backend."""
        raise NotImplementedError


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


class Loader(Part):
    """How batches reach the step. `backends`: those that it feeds. `steps_per_execution`: optimizer steps before Python
    looks at their losses.
    """

    backends: ClassVar[tuple[str, ...]]

    if TYPE_CHECKING:

        @property
        def steps_per_execution(self) -> int: ...

        @property
        def pin_memory(self) -> bool:
            """Whether batches lie in page-locked memory, and are copied to a GPU one ahead."""
    else:
        steps_per_execution: int
        pin_memory = False

    def stream(self, data: Data, dtype: str, batch_size: int, seed: int) -> Iterable[tuple[Sized, Sized]]:
        """Training batches by `data.inputs` and `data.targets`; the n-th pass over them is the n-th epoch.

        Only `memory` has none: there the whole set lies on the device.
        """
        raise NotImplementedError

    def check_place(self, place: Place) -> None:
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

    def check_place(self, place: Place, backend: str) -> None:
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


@dataclass(frozen=True)
class Recipe:
    """How a problem's source solves it by DeepXDE: hidden layers, steps of Adam, points of the test loss (None: those
    of the training), steps of L-BFGS, how kernels are drawn, whether the conditions on the boundary are hard, and
    whether the equations are asked for at the measurements too (`anchors`).
    """

    units: tuple[int, ...] = (20, 20, 20)
    steps: int = 10_000
    test_points: int | None = 100
    lbfgs_steps: int = 0
    initializer: Literal["Glorot uniform", "Glorot normal"] = "Glorot uniform"
    hard: bool = False
    anchors: bool = False


class Problem(Part):
    """Equations to be solved by a network (of the group `dataset`). `math` has sin, cos, exp, tanh, sqrt, log, arctan2
    and pi for whatever the columns are.

    `interior`, `boundary`: how many points a training uses; where the domain is a SpaceTime, `initial` at time 0.
    `equations`: a name for each residual, none for a plain fit. `unknowns`: coefficients to be found, with their first
    guesses (an inverse problem has some). `recipe`: how its source solves it. `enriched`: names of the functions of
    `enrichment`. `corner`: the corner of a polygon at which the solution is not smooth.
    """

    domain: ClassVar[Domain]
    outputs: ClassVar[int]
    equations: ClassVar[tuple[str, ...]]
    unknowns: ClassVar[Mapping[str, float]]
    recipe: ClassVar[Recipe] = Recipe()
    enriched: ClassVar[tuple[str, ...]] = ()
    corner: ClassVar[Corner | None] = None

    if TYPE_CHECKING:

        @property
        def interior(self) -> int: ...

        @property
        def boundary(self) -> int: ...

        @property
        def initial(self) -> int: ...
    else:
        interior: int
        boundary: int
        initial = 0

    @abstractmethod
    def residuals(self, x: Sequence[Column], u: Field, math: Math, unknowns: Mapping[str, Column]) -> Sequence[Column]:
        """What has to vanish inside the domain, one column an equation; `x` one column a coordinate."""

    @abstractmethod
    def conditions(self) -> tuple[Condition, ...]:
        """What holds on the boundary or at data points."""

    @abstractmethod
    def reference(self, points: np.ndarray) -> np.ndarray:
        """The solution (N, outputs) at points (N, d), from a closed form or a computation of our own, in float64."""

    def hard(self, x: Sequence[Column], u: Sequence[Column], math: Math) -> Sequence[Column]:
        """The outputs, made to satisfy the conditions whatever the network says."""
        raise NotImplementedError

    def enrichment(self, x: Sequence[Column], math: Math) -> Sequence[Column]:
        """Functions that are added with trainable coefficients."""
        raise NotImplementedError

    def classical(self, points: np.ndarray) -> tuple[str, np.ndarray | float]:
        """A classical solver's name, and its solution (N, outputs) at points (N, d), or a bound on its error."""
        raise NotImplementedError


class Network(Part):
    """A network for problems (of the group `model`)."""

    if TYPE_CHECKING:

        @property
        def activation(self) -> str:
            """Of the hidden layers."""
    else:
        activation = "tanh"

    @abstractmethod
    def of(self, problem: Problem) -> Network:
        """The network as it will be: what it leaves open is the recipe's."""

    @abstractmethod
    def sizes(self, problem: Problem) -> list[int]:
        """From the coordinates over the hidden layers to the outputs."""

    @abstractmethod
    def initial(self, problem: Problem, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """Kernels and biases to start from, in float64."""


class Solver(Part):
    """What trains a network for a problem. `active`: it does. `backends`, `precisions`: those that it runs on and in.

    `instead`: for another backend, what to use. `graded`: residuals near a corner count less. `condition_weight`: how
    much a condition weighs beside an equation. `seeds`: so many are trained at once.
    """

    active: ClassVar[bool] = True
    backends: ClassVar[tuple[str, ...]]
    precisions: ClassVar[tuple[str, ...]]
    instead: ClassVar[Mapping[str, str]] = {}

    if TYPE_CHECKING:

        @property
        def graded(self) -> bool: ...

        @property
        def condition_weight(self) -> float: ...

        @property
        def seeds(self) -> int: ...
    else:
        graded, condition_weight, seeds = False, 1.0, 1

    @abstractmethod
    def check(self, problem: Problem, precision: str) -> None:
        """Refuse what the solver or the problem lacks, before anything is imported. Raises UserError and Impossible."""

    @abstractmethod
    def solve(
        self, problem: Problem, model: Network, *, precision: str, seed: int, place: Place, run: Run, backend: Backend
    ) -> Solution:
        """Train `model` on a device. Raises RunError for a loss that is not finite."""

    def check_backend(self, backend: str, problem: Problem) -> None:
        """Refuse a backend, by what only the solver can know of it. Raises Impossible."""

    def hard_for(self, problem: Problem) -> bool:
        """Whether the conditions on the boundary are built into the outputs."""
        return False

    def line_search(self, problem: Problem) -> bool:
        """Whether it has one, to which rounding may look like the end."""
        return False


class GridMember(Protocol):
    """A cell's tie to the grid that started it. `grid`: the folder of the grid's own run."""

    grid: str

    def began(self, run: Run) -> None:
        """Note which run the cell has become."""
        ...
