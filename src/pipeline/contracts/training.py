"""What a training is made of: data, model, loss, and what changes or measures them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pipeline.contracts.part import Part

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from pipeline.augmentations.draws import Draws
    from pipeline.datasets import Data
    from pipeline.machine.device import Place
    from pipeline.models import Shapes
    from pipeline.models.cached import Cached
    from pipeline.runs.result import Direction
    from pipeline.tasks import ExampleKind, Targets, Task


class Model(Part):
    """A network for a dataset. `layer_dtypes`: a dtype for each layer (None: the precision's), or none at all.

    `shared_start`: its kernels, biases, embeddings and normalizations start from values drawn by the seed, the same on
    every backend (pipeline.models.weights). A model that does not say so starts from the values that it was made with.
    `takes`: what its examples have to be (`Task.example_kind`); None: anything.
    `tied`: its outputs are made by its embeddings, and by no kernel.
    `layout`: "channels_first" for a module that takes images as (N, C, H, W); `shapes` is (H, W, C) all the same.
    """

    shared_start: ClassVar[bool] = False
    takes: ClassVar[ExampleKind | None] = None
    layout: ClassVar[Literal["channels_last", "channels_first"]] = "channels_last"

    if TYPE_CHECKING:

        @property
        def layer_dtypes(self) -> Sequence[str | None]: ...

        @property
        def tied(self) -> bool: ...
    else:
        layer_dtypes = ()
        tied = False

    one_of: ClassVar[tuple[str, ...]] = ("torch", "keras")

    def first_value(self, name: str, drawn: np.ndarray) -> np.ndarray:
        """A weight of the shared start: as it was drawn, unless the model begins otherwise."""
        return drawn

    def rungs(self) -> Mapping[str, str]:
        """What stage=ladder tries of the model's settings, above its other rungs: a rung's name -> what it changes."""
        return {}

    def check_shapes(self, shapes: Shapes) -> None:
        """Refuse, without building anything, examples that it cannot be built for. Raises ValueError."""

    def least_batch(self, shapes: Shapes) -> int:
        """How many examples a batch has at least that it can be trained on."""
        return 1

    def torch(self, shapes: Shapes) -> object:
        """A torch.nn.Module from a batch x (N, *shapes.x) to (N, *shapes.outputs)."""
        raise NotImplementedError

    def keras(self, shapes: Shapes) -> object:
        """A keras.Model from a batch x (N, *shapes.x) to (N, *shapes.outputs)."""
        raise NotImplementedError

    def torch_cached(self, net: object) -> Cached:
        """For a model of tokens: the module that `torch` made, with a cache of keys and values."""
        raise NotImplementedError

    def keras_cached(self, model: object) -> Cached:
        """For a model of tokens: the model that `keras` made, with a cache of keys and values."""
        raise NotImplementedError


class Optimizer(Part):
    """A rule by which weights are updated, the same on every backend. `learning_rate`: what a schedule scales.

    `decay`: which weights its weight decay, if any, shrinks: `all`, or `matrices` (`decays`). `several`: it has several
    kinds of update, and `kinds` says which a weight gets; `asks_the_model`: it may refuse the model's weights there.
    `divides_by_squares`: it divides by the root of squared gradients alone, which are 0 in float16 where gradients are
    small.
    """

    one_of: ClassVar[tuple[str, ...]] = ("torch", "keras")
    several: ClassVar[bool] = False
    divides_by_squares: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def learning_rate(self) -> float: ...

        @property
        def decay(self) -> str: ...

        @property
        def asks_the_model(self) -> bool: ...
    else:
        decay, asks_the_model = "all", False

    def decays(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a weight decays. With `matrices` those of one dimension do not (biases, and the scales and shifts of
        normalizations), nor biases of two, as a GRU has."""
        return self.decay == "all" or (len(shape) > 1 and name.rpartition(".")[2] != "bias")

    @abstractmethod
    def slots(self) -> int:
        """Numbers kept per weight beside the weight and its gradient, for the estimate of memory."""

    def kinds(self, shapes: Mapping[str, tuple[int, ...]], outputs: int | None) -> dict[str, str]:
        """The kind of update of each weight, by their common names (pipeline.models.weights) in the layers' order;
        of frozen ones too, since one of them may make the outputs. `outputs`: how many numbers the last axis of
        the model's output has; None where no kernel makes them. Raises UserError."""
        raise NotImplementedError

    def torch(self, parameters: Iterable[object]) -> object:
        """A torch.optim.Optimizer over `parameters`: tensors, or groups of them as dictionaries.

        Of an optimizer with `several` kinds each group has a `kind` and one dtype of its weights, in `compute` the
        dtype of its products, and in `inputs_first` whether its matrices are (in, out) in place of torch's (out, in).
        """
        raise NotImplementedError

    def keras(self) -> object:
        """A keras.optimizers.Optimizer; one with `several` kinds finds each variable's in its list `kinds`."""
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
    """What a training lowers, the same on every backend. `asks_the_data`: only they can tell whether `check` passes.

    `masks`: its functions of torch and Keras take a third argument, booleans: the rows that count, where some are
    padding. The others add nothing to the sum, and the mean is still over all of them.
    `takes`: what its targets have to be (`Task.targets`); None: anything.
    `nats`: it is the cross-entropy of classes and nothing else, so that bits can be made of it.
    `margins`: it trains margins between classes, of which a softmax makes no probabilities.
    """

    one_of: ClassVar[tuple[str, ...]] = ("torch", "keras")
    masks: ClassVar[bool] = False
    takes: ClassVar[Targets | None] = None
    margins: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def asks_the_data(self) -> bool: ...

        @property
        def nats(self) -> bool: ...
    else:
        asks_the_data = nats = False

    @abstractmethod
    def numpy(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """The loss of outputs that are at hand, in float64: it measures the test set. It cannot write to them."""

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

    `direction`: which value is better. `unit`: of the value; empty where it has none. `name`: what it is called after
    `test/` (None: as its class), and `renamed_by` what gives it another name. `takes`: what its targets have to be
    (`Task.targets`); None: anything. `asks_the_data`: only they can tell whether `check` passes.
    `of_probabilities`: it takes a softmax of the outputs.
    """

    unit: ClassVar[str] = ""
    renamed_by: ClassVar[str] = "a field `name` of the class"
    takes: ClassVar[Targets | None] = None
    asks_the_data: ClassVar[bool] = False
    of_probabilities: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def direction(self) -> Direction: ...

        @property
        def name(self) -> str | None: ...
    else:
        direction: str
        name = None

    def check(self, outputs: tuple[int, ...]) -> None:
        """Refuse a task that it says nothing of, by the shape of one example's outputs. Raises UserError."""

    @abstractmethod
    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> Any:
        """Of one batch what adds up over batches: a number, an array, or several of them as a tuple.

        Outputs, in float64, and targets are as the loss takes them (`Task.compared`). They cannot be written to.
        """

    @abstractmethod
    def value(self, sums: Any) -> float:
        """What the sums over all batches come to."""

    def of_examples(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray | None:
        """What each example of a batch gives, (N,), of a metric that is the mean of that: True where the example is
        right, of a share, or a number. The result then has the interval of the mean by the test examples. None: it has
        none, as of a metric that is not a mean over examples.

        It is asked only where the task has independent examples (`Task.independent`) and each is a row here.
        """
        return None


class Dataset(Part):
    """Where the data come from. `task`: the type of task that they are of (pipeline.tasks).

    `of_user`: they are files or code of the user's, so that they are read before a run begins, to check them.
    `fixed_test`: its authors fixed the test set, by which published results compare, so that it is not divided anew.
    """

    of_user: ClassVar[bool] = False
    fixed_test: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def task(self) -> type[Task]: ...

        @property
        def cache(self) -> str | None:
            """The folder that fetched files are kept in, where set."""
    else:
        cache = None

    @abstractmethod
    def load(self, root: Path, seed: int) -> Data:
        """Read, fetching to `root` first where needed. Raises UserError for data that is missing or damaged."""

    def load_pool(self, root: Path) -> Data:
        """For cross-validation: all examples as the training split, in the order of the source, with the `sha256` of
        `load`. Of a dataset without this method, what `load` gives is joined."""
        raise NotImplementedError


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
    `distributes`: it always does, a whole batch at a time, so that each of several processes makes its part of it.
    """

    backends: ClassVar[tuple[str, ...]]
    augments: ClassVar[bool] = False
    distributes: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def steps_per_execution(self) -> int: ...

        @property
        def pin_memory(self) -> bool:
            """Whether batches lie in page-locked memory, and are copied to a GPU one ahead."""
    else:
        steps_per_execution: int
        pin_memory = False

    @abstractmethod
    def stream(
        self, data: Data, dtype: str, batch_size: int, seed: int, start: tuple[int, int] = (0, 0)
    ) -> Iterable[tuple[Sized, Sized]]:
        """Training batches by `data.inputs` and `data.targets`; the n-th pass over them is the n-th epoch.

        Each has `batch_size` examples, the last of an epoch those that are left; one that has others ends the training.

        `start`: the epoch of the first pass, and the batch with which that one begins (of a resumed training).
        """

    def check_device(self, place: Place) -> None:
        """Refuse a device that it cannot feed as it is set. Raises Impossible."""
