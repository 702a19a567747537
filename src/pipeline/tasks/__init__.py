"""Tasks: what a batch is and how a model is judged on it. One file each; a dataset says which task its data are of.

The engine knows no images and no tokens. It asks the task for the shapes of a batch, for what the loss compares, for
what counts as correct, and for a judge of the test set. A task of your own is a frozen dataclass like these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from pipeline.models import Shapes

if TYPE_CHECKING:
    from pipeline.contracts import Loss
    from pipeline.report.intervals import Interval
    from pipeline.runs.fit import Predict
    from pipeline.runs.result import Direction, Metric, Table
    from pipeline.runs.run import Run

ExampleKind = Literal["tokens", "pairs of sequences", "numbers"]
Targets = Literal["classes", "numbers"]


class Ops(Protocol):
    """The few operations that a task may need, from the framework at work: torch, TensorFlow, jax.numpy or NumPy.

    Comparisons and arithmetic are the arrays' operators.
    """

    def argmax(self, x: Any, axis: int, /) -> Any: ...

    def reshape(self, x: Any, shape: tuple[int, ...], /) -> Any: ...

    def abs(self, x: Any, /) -> Any: ...

    def square(self, x: Any, /) -> Any: ...

    def sum(self, x: Any, axis: int, /) -> Any: ...


@dataclass(frozen=True)
class Details:
    """What a judge knows beside its metrics, for result.json and stage=show. `rows`: for the run's own table."""

    metrics: tuple[Metric, ...] = ()
    tables: tuple[Table, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()


class Judge(ABC):
    """Takes a model's outputs on the test set, batch by batch, and says how good they are. One per test set.

    It keeps sums, not the outputs: a test set may be larger than memory.
    """

    @abstractmethod
    def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None:
        """One batch: x in the dtype of the model's inputs, scaled and not normalised, outputs (B, ...) in float64, and
        targets as the dataset has them. None can be written to.
        """

    def ask(self, predict: Predict, x: np.ndarray, y: np.ndarray) -> None:  # noqa: B027  # few tasks ask
        """One batch, after `add` got it, to try the model on other inputs: without its targets, or with others.

        Raises RunError where its answer shows that what was measured is worth nothing.
        """

    @abstractmethod
    def metrics(self) -> tuple[Metric, ...]:
        """The loss first, then the score where the task has one; named test/<name>."""

    def intervals(self) -> Mapping[str, Interval]:
        """By the names of metrics the intervals that follow from the test examples: of a mean or a share over examples
        that are independent, and of nothing else (pipeline.report.intervals)."""
        return {}

    def details(self) -> Details:
        """More of the test set, by parts of it (classes)."""
        return Details()

    def write(self, run: Run) -> None:  # noqa: B027  # nor write
        """Write what was predicted for each example of the test set into the run's folder."""

    def draw(self, run: Run, title: str) -> None:  # noqa: B027  # a judge need not draw
        """Write figures and files about the test set into the run's folder."""


class Task(ABC):
    """What a batch of x (B, ...) and y (B, ...) is, and how outputs are judged.

    `unit`: what is counted and timed (images, tokens), in the plural; `may_count`: what it may be, where the examples
    decide it. `score`: the name of what `scores` gives,
    averaged, such as accuracy; None for a task that is judged by its loss alone. `better`: which score is.
    `example_kind`: what models may expect: "tokens" below a vocabulary, "pairs of sequences" of them, or "numbers";
    None: anything.
    `targets`: what metrics may expect: "classes" (N,) beside logits (N, classes), or "numbers" of the outputs' shape;
    None: anything else. `headline`: the metric of the test set that a model is judged by; None: the loss.
    `pads`: some targets are padding (`counted`). `of_probabilities`: what its judge computes from a softmax of the
    outputs, which means nothing where the loss trains margins. `tested`: the names of what its judge measures
    and which value is better, where it says so. `independent`: each test example is one row of `compared`, and
    independent of the others, so that a metric that is a mean over them has an interval (`Metric.of_examples`).
    """

    may_count: ClassVar[tuple[str, ...]] = ("examples",)
    score: ClassVar[str | None] = None
    better: ClassVar[Direction] = "max"
    example_kind: ClassVar[ExampleKind | None] = None
    targets: ClassVar[Targets | None] = None
    headline: ClassVar[str | None] = None
    pads: ClassVar[bool] = False
    of_probabilities: ClassVar[tuple[str, ...]] = ()
    tested: ClassVar[Mapping[str, Direction]] = {}
    independent: ClassVar[bool] = False

    @property
    def unit(self) -> str:
        return self.may_count[0]

    @property
    @abstractmethod
    def shapes(self) -> Shapes:
        """Of one example: what a model takes and gives."""

    @property
    def units(self) -> int:
        """How many units one example holds: 1 image, or as many tokens as the sequence is long."""
        return 1

    def compared(self, ops: Ops, outputs: Any, y: Any) -> tuple[Any, Any]:
        """Outputs and targets as the loss takes them; the loss is the mean over their first axis."""
        return outputs, y

    def counted(self, ops: Ops, y: Any) -> Any:
        """Which rows of `compared` count, as booleans, where some are padding. None: all of them."""
        return None

    @property
    def counted_share(self) -> float:
        """The share of the training's rows that count. The loss divides by it: so batches of any size add up."""
        return 1.0

    def loss_of(self, loss: Callable[..., Any], ops: Ops, outputs: Any, y: Any) -> Any:
        """What a training lowers: `loss`, of Loss.torch() or Loss.keras(), of a batch."""
        counted = self.counted(ops, y)
        if counted is None:
            return loss(*self.compared(ops, outputs, y))
        return loss(*self.compared(ops, outputs, y), counted) / self.counted_share

    def of_split(self, loss: float, y: np.ndarray) -> float:
        """The mean loss over what counts of a split's targets y (N, ...), from the mean of `loss_of` over its examples:
        another split than the training's has another share of padding."""
        counted = self.counted(np, y)
        return loss if counted is None else loss * self.counted_share / float(np.mean(counted))

    def scores(self, ops: Ops, outputs: Any, y: Any) -> Any:
        """For each unit of the batch its score: True where a class is correct, or a number. Any shape."""
        raise NotImplementedError(f"{type(self).__name__}.score={self.score!r} needs scores()")

    @abstractmethod
    def check(self, y: np.ndarray) -> str | None:
        """What is wrong with targets of this shape, dtype and range; None where nothing is."""

    @abstractmethod
    def judge(self, loss: Loss) -> Judge:
        """A judge of the test set by the experiment's loss; `training.metrics` are measured beside it."""

    def validated(self, loss: Loss, found: Mapping[str, float], y: np.ndarray) -> tuple[Metric, ...]:
        """More metrics of the validation data, from those `found` after the last epoch and the targets y (N, ...)."""
        return ()

    def notes(self, train: np.ndarray, test: np.ndarray) -> tuple[str, ...]:
        """What is odd about the targets (N, ...) that are learned and measured, for people."""
        return ()

    def card(self) -> dict[str, Any]:
        """What a saved model needs to be used without its data, as plain data."""
        shapes = self.shapes
        return {"task": type(self).__name__.lower(), "x": list(shapes.x), "outputs": list(shapes.outputs)}


def beyond_vocabulary(y: np.ndarray, vocabulary: int) -> str | None:
    """What is wrong with the range of tokens; None where nothing is."""
    if len(y) and not (y.min() >= 0 and y.max() < vocabulary):
        return f"tokens {y.min()} to {y.max()}; the vocabulary is 0 to {vocabulary - 1}"
    return None
